// Lists the server's open waits for somebody else, such as an engine's answer: each has a name, a start and a deadline. It ends
// no wait by itself.

import type { Clock } from "../core/base/clock.ts";
import type { WaitName } from "../core/base/waits.ts";

export interface Wait {
  /** Name of a wait of requests; absent: it is none. */
  readonly name?: WaitName;
  /** The waiting call or part: "update_weights". */
  readonly what: string;
  /** Whom the wait is for: "engine 1". */
  readonly forWhom: string;
  /** Reason in words: "it has not answered /update_weights". */
  readonly reason: string;
  /** Deadline, ms after the start; null: there is none, and `reason` says what ends the wait. */
  readonly msMax: number | null;
}

export interface OpenWait extends Wait {
  readonly sinceMs: number;
  readonly isLate: boolean;
}

/** Share of its deadline after which a wait is late; and the time of one without a deadline, ms. */
const LATE_SHARE = 0.5;
const LATE_MS = 60_000;

export class Waits {
  readonly #clock: Clock;
  readonly #open = new Set<Wait & { readonly sinceMs: number }>();

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
    const nowMs = this.#clock.nowMs();
    return [...this.#open].map((wait) => {
      const { sinceMs, msMax } = wait;
      const lateMs = msMax === null ? LATE_MS : msMax * LATE_SHARE;
      return { ...wait, isLate: nowMs - sinceMs > lateMs };
    });
  }
}
