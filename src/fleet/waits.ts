// Waits of the server for somebody else, such as an engine's answer: each has a name, a begin, a deadline, and what ends it.
// It ends no wait by itself.

import type { Clock } from "../core/base/clock.ts";

export interface Wait {
  /** The waiting call or part: "update_weights". */
  readonly what: string;
  /** Whom it waits for: "engine 1". */
  readonly forWhom: string;
  /** Reason in words: "it has not answered /update_weights". */
  readonly reason: string;
  /** Time after which it is given up, ms; null: it has no deadline, and `reason` says what ends it. */
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

  /** Returns what ends it. */
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
