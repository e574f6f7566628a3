// What may be written to a stream that a person looks at: how wide, whether in colour, in which
// characters, and whether lines can be drawn over. Decided from the stream and the environment alone.

export interface Terminal {
  /** Lines can be redrawn in place. */
  readonly live: boolean;
  readonly columns: number;
  readonly rows: number;
  readonly color: boolean;
  /** false: ASCII only. */
  readonly unicode: boolean;
}

/** The part of a WriteStream that matters here. */
export interface TerminalStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
  readonly rows?: number;
  write(text: string): unknown;
}

export type Environment = Readonly<Record<string, string | undefined>>;

/** If a stream has no size: that of a VT100. */
const COLUMNS_DEFAULT = 80;
const ROWS_DEFAULT = 24;

export function terminalOf(stream: TerminalStream, env: Environment): Terminal {
  const tty = stream.isTTY === true;
  const live = tty && env.TERM !== "dumb";
  return {
    live,
    // A terminal without a known size reports 0.
    columns: stream.columns || COLUMNS_DEFAULT,
    rows: stream.rows || ROWS_DEFAULT,
    // no-color.org: set and not empty, whatever its value.
    color: live && !env.NO_COLOR,
    unicode: speaksUtf8(env),
  };
}

/** The first of the locale variables that is set decides, as in setlocale(3). */
function speaksUtf8(env: Environment): boolean {
  if (env.TERM === "linux") return false;
  const locale = env.LC_ALL || env.LC_CTYPE || env.LANG;
  // Minimal containers set no locale at all, and their terminals are UTF-8 all the same.
  return (
    locale === undefined || locale === "" || /utf-?8/i.test(locale) || env.WT_SESSION !== undefined
  );
}

export type Style = "bold" | "dim" | "green" | "yellow" | "red" | "cyan";

const CODES: Record<Style, readonly [open: number, close: number]> = {
  bold: [1, 22],
  dim: [2, 22],
  green: [32, 39],
  yellow: [33, 39],
  red: [31, 39],
  cyan: [36, 39],
};

export function paint(text: string, style: Style | null, color: boolean): string {
  if (!color || style === null || text === "") return text;
  const [open, close] = CODES[style];
  return `\u001B[${open}m${text}\u001B[${close}m`;
}
