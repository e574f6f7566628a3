// Status of a command that works: on a terminal a few lines, drawn over in place; elsewhere a plain line every few
// seconds.

import { styleText } from "node:util";
import { createLogUpdate } from "log-update";

export type Style = "bold" | "dim" | "green" | "yellow" | "red" | "cyan";

/** The text in this style, if the stream is a terminal with colours and NO_COLOR is not set. */
export function paint(text: string, style: Style, stream: NodeJS.WriteStream = process.stdout) {
  return styleText(style, text, { stream });
}

/** Seconds between two frames, and between two plain lines. */
const FRAME_S = 0.1;
const PLAIN_S = 5;
/** Width assumed for a terminal that does not report its size: a VT100's columns. */
const COLUMNS_DEFAULT = 80;

export interface StatusOptions {
  readonly quiet: boolean;
  /** Default: standard error. */
  readonly stream?: Pick<NodeJS.WriteStream, "write"> & Partial<NodeJS.WriteStream>;
  readonly nowS?: () => number;
}

export class Status {
  readonly #stream: NonNullable<StatusOptions["stream"]>;
  readonly #quiet: boolean;
  readonly #nowS: () => number;
  readonly #live: ReturnType<typeof createLogUpdate> | null;
  #nextS = Number.NEGATIVE_INFINITY;

  constructor({ quiet, stream = process.stderr, nowS }: StatusOptions) {
    this.#stream = stream;
    this.#quiet = quiet;
    this.#nowS = nowS ?? (() => performance.now() / 1000);
    const isLive = !quiet && stream.isTTY === true && process.env.TERM !== "dumb";
    // The cursor is left alone: a killed process could not give it back.
    this.#live = isLive
      ? createLogUpdate(stream as NodeJS.WriteStream, { showCursor: true })
      : null;
  }

  /** Shows the current status; call it whenever there is news. `plain`: the same on one line. */
  show(frame: (columns: number) => readonly string[], plain: () => string): void {
    const nowS = this.#nowS();
    if (this.#quiet || nowS < this.#nextS) return;
    this.#nextS = nowS + (this.#live === null ? PLAIN_S : FRAME_S);
    if (this.#live === null) this.#stream.write(`${plain()}\n`);
    else this.#live(frame(this.#stream.columns || COLUMNS_DEFAULT).join("\n"));
  }

  /** Prints a permanent line above the redrawn ones. */
  note(text: string): void {
    if (this.#quiet) return;
    this.#live?.clear();
    this.#stream.write(`${text}\n`);
    this.#nextS = Number.NEGATIVE_INFINITY;
  }

  /** Removes the live lines, and leaves `text` in their place. */
  end(text: string | null = null): void {
    this.#live?.clear();
    this.#live?.done();
    if (!this.#quiet && text !== null) this.#stream.write(`${text}\n`);
  }
}
