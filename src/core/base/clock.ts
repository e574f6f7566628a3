// Time as a value that is passed in, so that the simulator and the fault tests own it.

/** Milliseconds since an arbitrary start; never goes back. */
export interface Clock {
  nowMs(): number;
}
