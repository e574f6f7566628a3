// Status of a command that works: on a terminal a few lines, drawn over in place; elsewhere a plain line every few
// seconds. How wide, in colour or not and in which characters is decided from the stream and the environment alone.

import { styleText } from "node:util";
import { createLogUpdate } from "log-update";

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

export function paint(text: string, style: Style, color: boolean): string {
  return color && text !== "" ? styleText(style, text, { validateStream: false }) : text;
}

/** Seconds between two frames, and between two plain lines. */
const FRAME_S = 0.1;
const PLAIN_S = 5;

export interface StatusOptions {
  readonly quiet: boolean;
  /** Default: standard error. */
  readonly stream?: NodeJS.WriteStream | TerminalStream;
  /** Default: the process's own. */
  readonly env?: Environment;
  readonly nowS?: () => number;
}

export class Status {
  readonly #stream: TerminalStream;
  readonly #env: Environment;
  readonly #quiet: boolean;
  readonly #nowS: () => number;
  readonly #live: ReturnType<typeof createLogUpdate> | null;
  #nextS = Number.NEGATIVE_INFINITY;

  constructor({ quiet, stream = process.stderr, env = process.env, nowS }: StatusOptions) {
    this.#stream = stream;
    this.#env = env;
    this.#quiet = quiet;
    this.#nowS = nowS ?? (() => performance.now() / 1000);
    const isLive = !quiet && terminalOf(stream, env).live;
    // The cursor is left alone: a killed process could not give it back.
    this.#live = isLive
      ? createLogUpdate(stream as NodeJS.WriteStream, { showCursor: true })
      : null;
  }

  /** Call it as often as there is news. `plain`: the same on one line. */
  show(frame: (terminal: Terminal) => readonly string[], plain: () => string): void {
    const nowS = this.#nowS();
    if (this.#quiet || nowS < this.#nextS) return;
    this.#nextS = nowS + (this.#live === null ? PLAIN_S : FRAME_S);
    if (this.#live === null) {
      this.#stream.write(`${plain()}\n`);
      return;
    }
    const terminal = terminalOf(this.#stream, this.#env);
    // log-update would cut the top off, where the bar is.
    this.#live(
      frame(terminal)
        .slice(0, Math.max(1, terminal.rows - 1))
        .join("\n"),
    );
  }

  /** Prints a permanent line above the redrawn ones. */
  note(text: string): void {
    if (this.#quiet) return;
    this.#live?.clear();
    this.#stream.write(`${text}\n`);
    this.#nextS = Number.NEGATIVE_INFINITY;
  }

  /** Takes the live lines away, and leaves `text` in their place. */
  end(text: string | null = null): void {
    this.#live?.clear();
    this.#live?.done();
    if (!this.#quiet && text !== null) this.#stream.write(`${text}\n`);
  }
}
