// Whether a request that moves should take its KV along or be computed again where it goes: by what both were seen to
// cost on these servers. Pure arithmetic: it measures nothing and moves nothing.

/** After so many samples an older one weighs half: conditions change within an iteration. */
const HALF_LIFE_SAMPLES = 24;
const DECAY = 0.5 ** (1 / HALF_LIFE_SAMPLES);
/** A sample beyond so many times what was expected is a stall of something else; it counts as this much. */
const OUTLIER_FACTOR = 4;
const OUTLIER_AFTER_SAMPLES = 8;

/** Milliseconds as a straight line over tokens, fitted to what was observed, the newest most. */
export class LinearCost {
  #count = 0;
  #weight = 0;
  #x = 0;
  #y = 0;
  #xx = 0;
  #xy = 0;

  /** Samples so far. */
  get count(): number {
    return this.#count;
  }

  observe(tokens: number, ms: number): void {
    const expected = this.predict(tokens);
    const isSettled = this.#count >= OUTLIER_AFTER_SAMPLES && expected !== null && expected > 0;
    const y = isSettled ? Math.min(ms, expected * OUTLIER_FACTOR) : ms;
    this.#count += 1;
    this.#weight = this.#weight * DECAY + 1;
    this.#x = this.#x * DECAY + tokens;
    this.#y = this.#y * DECAY + y;
    this.#xx = this.#xx * DECAY + tokens * tokens;
    this.#xy = this.#xy * DECAY + tokens * y;
  }

  /** null: nothing was observed. Never negative; never falls with the tokens. */
  predict(tokens: number): number | null {
    if (this.#count === 0) return null;
    const meanX = this.#x / this.#weight;
    const meanY = this.#y / this.#weight;
    const variance = this.#xx / this.#weight - meanX * meanX;
    // Samples of one length say nothing of another.
    if (variance <= 1e-6 * meanX * meanX + 1e-9) return meanY;
    const slope = Math.max(0, (this.#xy / this.#weight - meanX * meanY) / variance);
    const base = meanY - slope * meanX;
    if (base >= 0) return base + slope * tokens;
    return (meanY / meanX) * tokens;
  }
}

export type MoveChoice = "kv" | "recompute" | "explore";

export interface MoveCosts {
  /** Tokens that the target would not have to compute, a multiple of its blocks. */
  readonly savedTokens: number;
  /** Of computing them again, and of the whole move; null: not known yet. */
  readonly recomputeMs: number | null;
  readonly moveMs: number | null;
}

/** KV begins to move when that costs less than this share of computing it again, and stops when it costs as much. */
const BEGIN_SHARE = 0.8;
/** Samples of a cost before it is believed. */
export const SAMPLES_MIN = 3;
/** While recomputing is cheaper, one move in so many is made by KV all the same, or it would never be seen to pay. */
const EXPLORE_EVERY = 32;
/** Trials that brought nothing, in a row, before the pauses between trials double. */
const FRUITLESS_MAX = 3;
const EXPLORE_EVERY_MAX = 4096;

/** Decides for one target. */
export class MoveJudge {
  #isMoving = false;
  #sinceTrial = 0;
  #fruitless = 0;
  #every = EXPLORE_EVERY;
  #isTrying = false;

  /** An `explore` is over when `arrived` or `missed` was called. */
  choose({ savedTokens, recomputeMs, moveMs }: MoveCosts): MoveChoice {
    if (savedTokens <= 0) return "recompute";
    const isKnown = recomputeMs !== null && moveMs !== null;
    if (isKnown) {
      this.#isMoving = moveMs < recomputeMs * (this.#isMoving ? 1 : BEGIN_SHARE);
      if (this.#isMoving) return "kv";
    }
    this.#sinceTrial += 1;
    if (this.#isTrying) return "recompute";
    const isDue = this.#sinceTrial >= this.#every;
    if (!isDue && (isKnown || this.#fruitless >= FRUITLESS_MAX)) return "recompute";
    this.#isTrying = true;
    this.#sinceTrial = 0;
    return "explore";
  }

  arrived(): void {
    this.#isTrying = false;
    this.#fruitless = 0;
    this.#every = EXPLORE_EVERY;
  }

  /** The KV was not published in time, or not found where it was wanted. */
  missed(): void {
    this.#isTrying = false;
    this.#fruitless += 1;
    if (this.#fruitless < FRUITLESS_MAX) return;
    this.#isMoving = false;
    this.#every = Math.min(EXPLORE_EVERY_MAX, this.#every * 2);
  }
}
