// Counts requests that come and go. A request's wait is measured by the requests that ended meanwhile: this needs no clock,
// and does not depend on how fast the engines are. A turn of a session that goes on counts as a small part of a request, as
// the session has not ended; but it counts, so that sessions without end hold nobody back for ever.

import type { RolloutRequest } from "../request/buffer.ts";

/** Sessions seldom have more turns. */
const TURNS = 64;

export class Turnover {
  #open = 0;
  #ended = 0;
  /** Peak number of open requests in this window and the one before. A window ends when as many have ended as its peak. */
  #peak = 0;
  #peakBefore = 0;
  #since = 0;

  joined(request: RolloutRequest): void {
    request.endedBefore = this.#ended;
    this.#open += 1;
    this.#peak = Math.max(this.#peak, this.#open);
  }

  /** Records that a request has finished, or was given up. */
  left(): void {
    this.#open -= 1;
    this.#ended += 1;
    if (this.#ended - this.#since < this.#peak) return;
    this.#since = this.#ended;
    this.#peakBefore = this.#peak;
    this.#peak = this.#open;
  }

  /** A session whose turn has ended goes on. */
  continued(): void {
    this.#ended -= 1 - 1 / TURNS;
  }

  /** Requests that have ended since the request joined. */
  endedSince(request: RolloutRequest): number {
    return this.#ended - request.endedBefore;
  }

  /** The recent peak of open requests: over this window and the one before. */
  get openMax(): number {
    return Math.max(this.#peak, this.#peakBefore);
  }
}
