// How many tokens ahead of what a request holds KV is reserved for it on one worker. A whole chunk would leave most of
// the KV empty: few responses are as long as they may be. Nothing ahead would let the engine run short in every step.
// It grows when the engine preempts, since a preempted request is computed again, and shrinks while it does not
// (additive increase would react too late: what was admitted grows by as many tokens as requests run, in every step).

/** A worker that never preempts reserves this part of its KV for each request, within these bounds. */
const PART = 1 / 256;
const TOKENS_MIN = 8;
const TOKENS_MAX = 512;
/** After preemptions it reserves this part of its KV for one request, at most. */
const PART_MAX = 1 / 8;
const GROWTH = 2;
const DECAY = 0.75;
/**
 * Tokens after an increase, as a part of the KV, within which preemptions have the same cause: the running requests
 * were admitted before it.
 */
const SETTLE_PART = 1 / 4;

export class Lookahead {
  readonly #kvTokens: number;
  readonly #least: number;
  readonly #most: number;
  #tokens: number;
  #preemptions = 0;
  /** Tokens that were made since it changed. */
  #made: number;

  constructor(kvTokens: number) {
    this.#kvTokens = kvTokens;
    this.#least = Math.min(TOKENS_MAX, Math.max(TOKENS_MIN, Math.ceil(kvTokens * PART)));
    this.#most = Math.max(this.#least, Math.floor(kvTokens * PART_MAX));
    this.#tokens = this.#least;
    this.#made = kvTokens;
  }

  get tokens(): number {
    return this.#tokens;
  }

  /** The worker has made `tokens` tokens. */
  generated(tokens: number): void {
    this.#made += tokens;
    if (this.#tokens === this.#least || this.#made < this.#kvTokens) return;
    this.#tokens = Math.max(this.#least, Math.floor(this.#tokens * DECAY));
    this.#made = 0;
  }

  /** `total`: requests that the engine has preempted since it started. */
  preempted(total: number): void {
    const isMore = total > this.#preemptions;
    this.#preemptions = total;
    if (!isMore || this.#made < this.#kvTokens * SETTLE_PART) return;
    this.#tokens = Math.min(this.#most, this.#tokens * GROWTH);
    this.#made = 0;
  }
}
