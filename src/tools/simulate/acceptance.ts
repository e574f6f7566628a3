// What has been learned about drafts on one engine: how often the token at each draft position is
// accepted, and what the drafter's probabilities turned out to mean. Old evidence fades, because the
// mix of requests changes while an iteration runs.

import { assert } from "../../core/base/assert.ts";

/** Observations fade by half about every 3,500: some seconds of a busy engine. */
const DECAY = 0.9998;
/** Pseudo-observations behind every estimate, so that few observations cannot swing it. */
const PRIOR_WEIGHT = 8;
/** Acceptance assumed at first, of a token that was likely enough to be verified. */
const PRIOR_ACCEPTANCE = 0.8;
const BIN_COUNT = 20;

export class Acceptance {
  readonly #positionsMax: number;
  /** Cumulative: drafts that reached position i, and whole paths accepted through it. */
  readonly #offered: Float64Array;
  readonly #accepted: Float64Array;
  readonly #binOffered = new Float64Array(BIN_COUNT);
  readonly #binAccepted = new Float64Array(BIN_COUNT);
  #reached = PRIOR_WEIGHT;
  #kept = PRIOR_WEIGHT * PRIOR_ACCEPTANCE;
  #previousAccepted = true;
  #probabilityMin = 0;

  constructor(positionsMax: number) {
    this.#positionsMax = positionsMax;
    this.#offered = new Float64Array(positionsMax + 1);
    this.#accepted = new Float64Array(positionsMax + 1);
  }

  /**
   * One draft token at `position` (1 = first), given with cumulative `probability`. `accepted`: it
   * and all before it were drawn by the target. Call for a draft's positions in ascending order.
   */
  observe(position: number, probability: number, accepted: boolean): void {
    assert(position >= 1, "draft positions start at 1");
    const value = accepted ? 1 : 0;
    const bin = binOf(probability);
    this.#binOffered[bin] = (this.#binOffered[bin] ?? 0) * DECAY + 1;
    this.#binAccepted[bin] = (this.#binAccepted[bin] ?? 0) * DECAY + value;
    if (probability < this.#probabilityMin) return;
    if (position <= this.#positionsMax) {
      this.#offered[position] = (this.#offered[position] ?? 0) * DECAY + 1;
      this.#accepted[position] = (this.#accepted[position] ?? 0) * DECAY + value;
    }
    if (position === 1 || this.#previousAccepted) {
      this.#reached = this.#reached * DECAY + 1;
      this.#kept = this.#kept * DECAY + value;
    }
    this.#previousAccepted = accepted;
  }

  /**
   * From now on, rate and position statistics count only tokens at least this likely: those that a
   * plan would have verified. Calibration counts all, so that drafts made only to learn teach it too.
   */
  watch(probabilityMin: number): void {
    this.#probabilityMin = probabilityMin;
  }

  /** alpha: probability that a draft token is accepted when all before it were. */
  get rate(): number {
    return this.#kept / this.#reached;
  }

  /** beta[position]: probability that the first `position` tokens of a draft are all accepted. Never rises. */
  through(position: number): number {
    let value = 1;
    for (let i = 1; i <= position; i += 1) {
      const prior = value * this.rate;
      const offered = (this.#offered[i] ?? 0) + PRIOR_WEIGHT;
      const accepted = (this.#accepted[i] ?? 0) + PRIOR_WEIGHT * prior;
      value = Math.min(value, accepted / offered);
    }
    return value;
  }

  /**
   * The lowest probability the drafter may return for a token that is really accepted with at least
   * `acceptanceMin`: its inverse calibration. May exceed 1: then nothing qualifies.
   */
  thresholdFor(acceptanceMin: number): number {
    if (acceptanceMin > 1) return 2;
    let threshold = 2;
    for (let bin = BIN_COUNT - 1; bin >= 0; bin -= 1) {
      const low = bin / BIN_COUNT;
      const middle = low + 0.5 / BIN_COUNT;
      const offered = (this.#binOffered[bin] ?? 0) + PRIOR_WEIGHT;
      const accepted = (this.#binAccepted[bin] ?? 0) + PRIOR_WEIGHT * middle;
      if (accepted / offered < acceptanceMin) break;
      threshold = low;
    }
    return threshold;
  }
}

function binOf(probability: number): number {
  return Math.max(0, Math.min(BIN_COUNT - 1, Math.floor(probability * BIN_COUNT)));
}
