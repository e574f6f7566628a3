// When to start a program again that keeps ending. Pure arithmetic.

export interface BackoffLimits {
  /** Pause in ms before the first restart; it doubles with each run that was too short. */
  readonly firstMs: number;
  readonly msMax: number;
  /** Time in ms after which a healthy run resets the count of failures. */
  readonly goodMs: number;
  /** Limit of consecutive unhealthy runs; then the program is given up. */
  readonly failuresMax: number;
}

/** A server starts in 16 to 80 s, so that a pause of 60 s does not add much; ten tries are about ten minutes. */
const BACKOFF_LIMITS: BackoffLimits = {
  firstMs: 500,
  msMax: 60_000,
  goodMs: 60_000,
  failuresMax: 10,
};

export class Backoff {
  readonly #limits: BackoffLimits;
  #failures = 0;

  constructor(limits: BackoffLimits = BACKOFF_LIMITS) {
    this.#limits = limits;
  }

  /** A run has ended that was healthy for `healthyMs`. Returns the pause in ms; null: give it up. */
  next(healthyMs: number): number | null {
    const { firstMs, msMax, goodMs, failuresMax } = this.#limits;
    this.#failures = healthyMs >= goodMs ? 1 : this.#failures + 1;
    if (this.#failures > failuresMax) return null;
    return Math.min(msMax, firstMs * 2 ** (this.#failures - 1));
  }
}
