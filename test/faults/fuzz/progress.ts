// What a process that runs inputs tells the one that watches it, through a file that both have mapped: it is readable
// even while the former hangs, or after it has died.

import { writeFileSync } from "node:fs";

/** Maximum of inputs that run at the same time. */
export const SLOTS_MAX = 64;
const WORDS = 1 + 2 * SLOTS_MAX;

export class Progress {
  readonly #words: Float64Array;

  private constructor(words: Float64Array) {
    this.#words = words;
  }

  static create(path: string): Progress {
    writeFileSync(path, new Uint8Array(8 * WORDS));
    return Progress.open(path);
  }

  static open(path: string): Progress {
    const bytes = Bun.mmap(path, { shared: true });
    return new Progress(new Float64Array(bytes.buffer, bytes.byteOffset, WORDS));
  }

  /** Inputs that were started. */
  get started(): number {
    return this.#words[0] ?? 0;
  }

  begin(index: number, slot: number, nowMs: number): void {
    this.#words[0] = this.started + 1;
    this.#words[1 + 2 * slot] = index;
    this.#words[2 + 2 * slot] = nowMs;
  }

  end(slot: number): void {
    this.#words[2 + 2 * slot] = 0;
  }

  /** Inputs that run, and since when. */
  running(): { index: number; sinceMs: number }[] {
    const found: { index: number; sinceMs: number }[] = [];
    for (let slot = 0; slot < SLOTS_MAX; slot += 1) {
      const sinceMs = this.#words[2 + 2 * slot] ?? 0;
      if (sinceMs > 0) found.push({ index: this.#words[1 + 2 * slot] ?? 0, sinceMs });
    }
    return found;
  }
}
