// Lists the server's open waits for somebody else, such as an engine's answer: each has a name, a start and a deadline. It ends
// no wait by itself.

import type { Clock } from "../core/base/clock.ts";
import type { OpenWait } from "../core/base/waits.ts";

export type Wait = Omit<OpenWait, "sinceMs">;

export class Waits {
  readonly #clock: Clock;
  readonly #open = new Set<OpenWait>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Returns the function that ends the wait. */
  begin(wait: Wait): () => void {
    const begun = { ...wait, sinceMs: this.#clock.nowMs() };
    this.#open.add(begun);
    return () => this.#open.delete(begun);
  }

  async during<T>(wait: Wait, act: () => Promise<T>): Promise<T> {
    const end = this.begin(wait);
    try {
      return await act();
    } finally {
      end();
    }
  }

  /** The oldest first. */
  get open(): OpenWait[] {
    return [...this.#open];
  }
}
