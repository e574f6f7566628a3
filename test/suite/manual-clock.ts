// Time for tests, in place of the wall clock.

import type { Clock } from "../../src/core/base/clock.ts";

/** A clock that stands still until it is told to move. */
export class ManualClock implements Clock {
  #nowMs: number;

  constructor(startMs = 0) {
    this.#nowMs = startMs;
  }

  nowMs(): number {
    return this.#nowMs;
  }

  advance(ms: number): void {
    this.#nowMs += ms;
  }
}

/** Calls that are due later: when a test says so. */
export class ManualTimers {
  readonly #due = new Map<() => void, number>();

  readonly later = (act: () => void, ms: number): (() => void) => {
    const timer = () => act();
    this.#due.set(timer, ms);
    return () => this.#due.delete(timer);
  };

  get size(): number {
    return this.#due.size;
  }

  clear(): void {
    this.#due.clear();
  }

  /** Makes the calls that are due within this time, and have not been cancelled meanwhile. Returns their times. */
  run(msMax = Number.POSITIVE_INFINITY): number[] {
    const due = [...this.#due].filter(([, ms]) => ms <= msMax);
    for (const [timer] of due) if (this.#due.delete(timer)) timer();
    return due.map(([, ms]) => ms);
  }
}
