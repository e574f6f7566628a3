// A sequential test of whether an engine samples from the distribution that it reports. Pure arithmetic.
//
// At each position the engine reports its most likely tokens with their logprobs, before it draws. The score of a
// draw is its logprob, cut off at SCORE_MIN and at the least likely token reported. Its mean and variance under the
// reported distribution are known, so that the sum S of (score - mean) is a martingale with a known sum of variances
// V. By Bennett's inequality, exp(x S - psi(x) V) with psi(x) = (e^(xc) - 1 - xc) / c^2 and increments of at most c is
// a supermartingale; so is its mean over a fixed grid of x. By Ville's inequality, an engine that samples as it should
// sees it reach 1 / alpha with a probability of at most alpha, however often one looks (Howard et al., "Time-uniform
// Chernoff bounds via nonnegative supermartingales", 2020).

/** nats. Less likely tokens count as this likely, which bounds an increment. */
const SCORE_MIN = -6;
const INCREMENT_MAX = -SCORE_MIN;
/** The tokens not reported are at most so many, each at most as likely as the least reported: no more mass is left. */
const VOCABULARY_MAX = 2 ** 24;
/** Mass that may be missing for rounding. What else is missing counts as 0 nats, so that no draw may be less likely. */
const MASS_ERROR = 0.01;
/** Geometric from 0.002 to 1: shifts of the mean from 0.01 nats to several. */
const GRID = Float64Array.from({ length: 19 }, (_, index) => 0.002 * 2 ** (index / 2));
const PSI = GRID.map(
  (x) => (Math.exp(x * INCREMENT_MAX) - 1 - x * INCREMENT_MAX) / INCREMENT_MAX ** 2,
);

export interface Draw {
  readonly logprob: number;
  /** Logprobs of the most likely tokens, highest first; the same number whichever token was drawn. */
  readonly top: ArrayLike<number>;
}

export class SamplingTest {
  readonly #alpha: number;
  #draws = 0;
  #sum = 0;
  #variance = 0;
  #scoreSum = 0;
  #meanSum = 0;
  #highest = 0;

  /** `alpha`: the chance that an engine is called faulty that is not. */
  constructor(alpha: number) {
    this.#alpha = alpha;
  }

  get draws(): number {
    return this.#draws;
  }

  /** Mean score of the tokens drawn, nats per token. */
  get scoreMean(): number {
    return this.#draws === 0 ? 0 : this.#scoreSum / this.#draws;
  }

  /** Expected mean under the reported distributions. */
  get expectedMean(): number {
    return this.#draws === 0 ? 0 : this.#meanSum / this.#draws;
  }

  /** The engine does not sample from what it reports. Stays true. */
  get isRejected(): boolean {
    return this.#highest >= -Math.log(this.#alpha);
  }

  /** Least difference of the means that this number of draws can show, nats per token. */
  get resolution(): number {
    const needed = Math.log(2 * GRID.length) - Math.log(this.#alpha);
    return this.#draws === 0 ? Infinity : Math.sqrt(2 * needed * this.#variance) / this.#draws;
  }

  add({ logprob, top }: Draw): void {
    const least = top[top.length - 1] ?? SCORE_MIN;
    const rest = Math.max(SCORE_MIN, least);
    let mass = 0;
    let mean = 0;
    let square = 0;
    for (let i = 0; i < top.length; i += 1) {
      const value = top[i] ?? 0;
      const p = Math.exp(value);
      const score = Math.max(SCORE_MIN, value);
      mass += p;
      mean += p * score;
      square += p * score * score;
    }
    // A row that is not full ends in -Infinity, which bounds nothing.
    const bound = least === Number.NEGATIVE_INFINITY ? 1 : VOCABULARY_MAX * Math.exp(least);
    const left = Math.max(0, Math.min(1 - mass, Math.max(MASS_ERROR, bound)));
    mean += left * rest;
    square += left * rest * rest;
    const score = Math.max(SCORE_MIN, logprob >= least ? logprob : rest);
    this.#draws += 1;
    this.#scoreSum += score;
    this.#meanSum += mean;
    this.#sum += score - mean;
    this.#variance += Math.max(0, square - mean * mean);
    this.#look();
  }

  /**
   * Raises the highest evidence, the log of the mean of the supermartingales of both signs. The mean is at most the
   * largest of them, which is seldom higher than what was seen: then no exponential is needed.
   */
  #look(): void {
    const away = Math.abs(this.#sum);
    let largest = Number.NEGATIVE_INFINITY;
    for (let i = 0; i < GRID.length; i += 1) {
      largest = Math.max(largest, (GRID[i] ?? 0) * away - (PSI[i] ?? 0) * this.#variance);
    }
    if (largest <= this.#highest) return;
    let sum = 0;
    for (let i = 0; i < GRID.length; i += 1) {
      const own = (PSI[i] ?? 0) * this.#variance + largest;
      sum += Math.exp((GRID[i] ?? 0) * away - own) + Math.exp(-(GRID[i] ?? 0) * away - own);
    }
    this.#highest = Math.max(this.#highest, largest + Math.log(sum / (2 * GRID.length)));
  }
}
