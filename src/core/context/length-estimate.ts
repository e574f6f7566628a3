// The length estimate of one group, L_g (paper, Algorithm 2): the longest finished response; before
// any has finished, the upper bound. The progress of running responses is a lower bound on top. Where the prompt has a
// history, the longest of its earlier responses counts as a finished one.

export class LengthEstimate {
  #tokensMax: number;
  #finishedMax: number;
  #runningMax = 0;

  /** `prior`: the longest response of earlier weight epochs; null: not known. */
  constructor(tokensMax: number, prior: number | null = null) {
    this.#tokensMax = tokensMax;
    this.#finishedMax = prior ?? -1;
  }

  /** Whether a response has finished, or there is a prior: else the estimate is only the upper bound. */
  get informed(): boolean {
    return this.#finishedMax >= 0;
  }

  /** Output tokens, 0 < tokens <= tokensMax. */
  get tokens(): number {
    if (this.#finishedMax < 0) return this.#tokensMax;
    return Math.min(this.#tokensMax, Math.max(this.#finishedMax, this.#runningMax));
  }

  /** Raises the upper bound: a response of the group may have `tokensMax` output tokens. */
  bounded(tokensMax: number): void {
    this.#tokensMax = Math.max(this.#tokensMax, tokensMax);
  }

  finished(tokens: number): void {
    this.#finishedMax = Math.max(this.#finishedMax, tokens);
  }

  /** Records the length of an unfinished response. Returns whether the estimate has changed. */
  progressed(tokens: number): boolean {
    if (tokens <= this.#runningMax) return false;
    const before = this.tokens;
    this.#runningMax = tokens;
    return this.tokens !== before;
  }
}
