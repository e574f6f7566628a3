// How many requests come and go. The wait of a request is measured by those that ended meanwhile, which needs no clock
// and does not depend on how fast the engines are.

import type { Request } from "../request/buffer.ts";

export class Turnover {
  #open = 0;
  #ended = 0;
  /** Most that were open at the same time, since `#since` had ended, and in the window before that. */
  #peak = 0;
  #peakBefore = 0;
  #since = 0;

  joined(request: Request): void {
    request.endedBefore = this.#ended;
    this.#open += 1;
    this.#peak = Math.max(this.#peak, this.#open);
  }

  /** Finished, or given up. */
  left(): void {
    this.#open -= 1;
    this.#ended += 1;
    if (this.#ended - this.#since < this.#peak) return;
    this.#since = this.#ended;
    this.#peakBefore = this.#peak;
    this.#peak = this.#open;
  }

  /** Requests that have joined and not ended. */
  get open(): number {
    return this.#open;
  }

  /** Requests that have ended since the request joined. */
  endedSince(request: Request): number {
    return this.#ended - request.endedBefore;
  }

  /** Most requests that were open at the same time, of late: for as long as it takes to end as many, at least. */
  get openMax(): number {
    return Math.max(this.#peak, this.#peakBefore);
  }
}
