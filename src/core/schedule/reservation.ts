// Requests that others are served ahead of, because they are large and must wait for room. After a number of dispatches
// one worker is reserved for such a request: it takes no other until the request has room there.

import type { RolloutRequest } from "../request/buffer.ts";
import type { Slot } from "./placement.ts";

/**
 * Dispatches that may go ahead of a request that was passed over, as a multiple of all slots and at least. After that,
 * a worker is kept free for the request.
 */
const ROUNDS_AHEAD = 4;
export const DISPATCHES_AHEAD_MIN = 64;

export class Reservation {
  /** Requests that were passed over: the count of dispatches at the first time. */
  readonly #passedAt = new Map<RolloutRequest, number>();
  #dispatches = 0;
  #request: RolloutRequest | null = null;
  #workerId: number | null = null;

  /** The request that a worker is reserved for; null: none is. */
  get request(): RolloutRequest | null {
    return this.#request;
  }

  /** The reserved worker, if it is there and can hold `tokens` tokens; else the reservation ends. */
  slot(slots: readonly Slot[], tokens: number): Slot | null {
    const slot = slots.find(({ workerId }) => workerId === this.#workerId) ?? null;
    if (slot !== null && slot.kvTokens >= tokens) return slot;
    this.#request = null;
    return null;
  }

  dispatched(): void {
    this.#dispatches += 1;
  }

  /** The request waits no more. */
  leaves(request: RolloutRequest): void {
    this.#passedAt.delete(request);
    if (this.#request === request) this.#request = null;
  }

  /** The request was passed over in this turn. It needs `tokens` tokens of KV. */
  passedOver(request: RolloutRequest, slots: readonly Slot[], tokens: number): void {
    const since = this.#passedAt.get(request);
    if (since === undefined) {
      this.#passedAt.set(request, this.#dispatches);
      return;
    }
    if (this.#request !== null) return;
    const rounds = ROUNDS_AHEAD * slots.reduce((sum, slot) => sum + slot.slots, 0);
    if (this.#dispatches - since < Math.max(DISPATCHES_AHEAD_MIN, rounds)) return;
    let best: Slot | null = null;
    for (const slot of slots) {
      if (slot.kvTokens < tokens) continue;
      if (best === null || slot.kvTokensFree > best.kvTokensFree) best = slot;
    }
    if (best === null) return;
    this.#request = request;
    this.#workerId = best.workerId;
  }
}
