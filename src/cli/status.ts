// What a person sees while a command works. On a terminal a few lines, drawn over in place; elsewhere a plain line every
// few seconds; nothing when asked to be quiet.

import { createLogUpdate } from "log-update";
import { type Environment, type Terminal, type TerminalStream, terminalOf } from "./terminal.ts";

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

  /** Prints a line that stays, above what is drawn over. */
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
