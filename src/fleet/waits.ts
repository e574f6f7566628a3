// Waits of the server for somebody else, such as an engine's answer: each has a name, a begin, a deadline, and what ends it.
// A wait is late if it takes longer than others of its name did. It ends no wait by itself.

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

/** A wait that others of its name outlast by less is not late, ms. */
const LATE_MS = 1_000;
/** Ratio to the longest ended wait of its name from which a wait is late. */
const LATE_RATIO = 3;
/** Share of its deadline after which a wait is late of whose name none has ended. */
const LATE_SHARE = 0.5;
/** Names whose longest wait is remembered; clients choose some of them. */
const NAMES_MAX = 256;

export class Waits {
  readonly #clock: Clock;
  readonly #open = new Map<object, Wait & { readonly sinceMs: number }>();
  /** The longest ended wait of each name, ms. */
  readonly #longest = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Returns what ends it. `hasCome`: what it waited for has come; it was not given up. Default: true. */
  begin(wait: Wait): (hasCome?: boolean) => void {
    const key = {};
    const sinceMs = this.#clock.nowMs();
    this.#open.set(key, { ...wait, sinceMs });
    return (hasCome = true) => {
      if (!this.#open.delete(key) || !hasCome) return;
      const ms = this.#clock.nowMs() - sinceMs;
      const before = this.#longest.get(wait.what);
      if (before === undefined && this.#longest.size >= NAMES_MAX) return;
      this.#longest.set(wait.what, Math.max(ms, before ?? 0));
    };
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
    return [...this.#open.values()].map((wait) => {
      const longest = this.#longest.get(wait.what);
      const usualMs = longest === undefined ? (wait.msMax ?? 0) * LATE_SHARE : longest * LATE_RATIO;
      const isKnown = longest !== undefined || wait.msMax !== null;
      return { ...wait, isLate: isKnown && nowMs - wait.sinceMs > Math.max(LATE_MS, usualMs) };
    });
  }
}
