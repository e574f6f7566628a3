// What a person sees while `foretoken replay` works: a line on a terminal, drawn over in place;
// elsewhere a line every few seconds; nothing when asked to be quiet.

import { createLogUpdate } from "log-update";
import type { Clock } from "../core/base/clock.ts";
import type { Pass } from "../tools/replay/cell.ts";
import { formatClock, formatCount } from "./format.ts";
import { type Environment, type TerminalStream, terminalOf } from "./terminal.ts";

const FRAME_MS = 100;
const PLAIN_MS = 5000;

export interface ReplayProgressOptions {
  readonly stream: NodeJS.WriteStream | TerminalStream;
  readonly env: Environment;
  readonly quiet: boolean;
  readonly clock: Clock;
  readonly cells: number;
}

export class ReplayProgress {
  readonly #options: ReplayProgressOptions;
  readonly #live: ReturnType<typeof createLogUpdate> | null;
  readonly #begunMs: number;
  #cell = 0;
  #name = "";
  #nextMs: number;

  constructor(options: ReplayProgressOptions) {
    this.#options = options;
    const live = !options.quiet && terminalOf(options.stream, options.env).live;
    this.#live = live
      ? createLogUpdate(options.stream as NodeJS.WriteStream, { showCursor: true })
      : null;
    this.#begunMs = options.clock.nowMs();
    this.#nextMs = this.#begunMs + this.#periodMs();
  }

  /** The next cell begins. */
  begin(name: string): void {
    this.#cell += 1;
    this.#name = name;
  }

  /** As often as there is news. */
  update(pass: Pass, tokens: number): void {
    const { quiet, clock, cells, stream } = this.#options;
    const nowMs = clock.nowMs();
    if (quiet || nowMs < this.#nextMs) return;
    this.#nextMs = nowMs + this.#periodMs();
    const what = pass === "sampling" ? "looking for the threshold" : "replaying";
    const elapsed = formatClock((nowMs - this.#begunMs) / 1000);
    const line = `${this.#cell}/${cells} ${this.#name}: ${what}, ${formatCount(tokens)} tokens  ${elapsed}`;
    if (this.#live === null) {
      stream.write(`${line}\n`);
      return;
    }
    // A wrapped line could not be drawn over.
    const { columns } = terminalOf(stream, this.#options.env);
    this.#live(line.slice(0, columns - 1));
  }

  /** Takes the live line away. */
  finish(): void {
    this.#live?.clear();
    this.#live?.done();
  }

  #periodMs(): number {
    return this.#live === null ? PLAIN_MS : FRAME_MS;
  }
}
