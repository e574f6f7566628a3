// The length estimate of one group, L_g (paper, Algorithm 2): the longest finished response; before
// any has finished, the upper bound. The progress of running responses is a lower bound on top.

export class LengthEstimate {
  #tokensMax: number;
  #finishedMax = -1;
  #runningMax = 0;

  constructor(tokensMax: number) {
    this.#tokensMax = tokensMax;
  }

  /** true once a response has finished: the estimate is then informed rather than the bound. */
  get informed(): boolean {
    return this.#finishedMax >= 0;
  }

  /** Output tokens, 0 < tokens <= tokensMax. */
  get tokens(): number {
    if (this.#finishedMax < 0) return this.#tokensMax;
    return Math.max(this.#finishedMax, this.#runningMax);
  }

  /** A response of the group may have `tokensMax` output tokens. */
  bounded(tokensMax: number): void {
    this.#tokensMax = Math.max(this.#tokensMax, tokensMax);
  }

  finished(tokens: number): void {
    this.#finishedMax = Math.max(this.#finishedMax, tokens);
  }

  /** A response of the group has `tokens` output tokens and is not finished. */
  progressed(tokens: number): void {
    this.#runningMax = Math.max(this.#runningMax, tokens);
  }
}
