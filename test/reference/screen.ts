// A terminal's screen, as far as redrawing lines in place needs it: what a person would see after all
// that was written. Wide enough never to wrap; an escape sequence it does not know is an error.

export class Screen {
  readonly isTTY = true;
  readonly columns: number;
  readonly rows: number;
  /** Everything written, escape sequences included. */
  raw = "";
  #lines: string[] = [""];
  #row = 0;
  #column = 0;

  constructor(columns: number, rows = 24) {
    this.columns = columns;
    this.rows = rows;
  }

  write(text: string): boolean {
    this.raw += text;
    // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences are what this is about.
    for (const piece of text.match(/\u001B\[[?0-9;]*[A-Za-z]|\n|[^\u001B\n]+/g) ?? []) {
      if (piece === "\n") this.#move(this.#row + 1, 0);
      else if (piece.startsWith("\u001B")) this.#escape(piece);
      else this.#print(piece);
    }
    return true;
  }

  /** The lines, without blank ones at the end. */
  lines(): string[] {
    return this.#lines
      .map((line) => line.trimEnd())
      .join("\n")
      .trimEnd()
      .split("\n");
  }

  #print(text: string): void {
    const line = (this.#lines[this.#row] ?? "").padEnd(this.#column);
    this.#lines[this.#row] =
      line.slice(0, this.#column) + text + line.slice(this.#column + text.length);
    this.#column += text.length;
  }

  #escape(sequence: string): void {
    const count = Number(sequence.slice(2, -1)) || 1;
    if (/^.\[\?2026[hl]$/.test(sequence) || sequence.endsWith("m")) return;
    const line = this.#lines[this.#row] ?? "";
    switch (sequence.at(-1)) {
      case "A":
        this.#move(Math.max(0, this.#row - count), this.#column);
        return;
      case "B":
        this.#move(this.#row + count, this.#column);
        return;
      case "G":
        this.#move(this.#row, 0);
        return;
      case "K":
        this.#lines[this.#row] = sequence === "\u001B[2K" ? "" : line.slice(0, this.#column);
        return;
      default:
        throw new Error(`the screen does not know ${JSON.stringify(sequence)}`);
    }
  }

  #move(row: number, column: number): void {
    this.#row = row;
    this.#column = column;
    while (this.#lines.length <= row) this.#lines.push("");
  }
}
