// Time as a value that is passed in, so that the simulator and the fault tests own it.

/** Milliseconds since an arbitrary start; never goes back. */
export interface Clock {
  nowMs(): number;
}

/** Runs `act` after `ms`; returns a function that cancels it. */
export type Later = (act: () => void, ms: number) => () => void;
