// Time as a value that is passed in, so that the simulator and the fault tests own it.

/** Milliseconds since an arbitrary start; never goes back. */
export interface Clock {
  nowMs(): number;
}

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
