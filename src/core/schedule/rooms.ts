// The room of all workers as it was when a request had none, to see whether any has more since.

import type { Slot } from "./placement.ts";

const FIGURES = 8;

export class Rooms {
  #before: Float64Array = new Float64Array(0);
  #now: Float64Array = new Float64Array(0);
  #isFull = false;

  /** All requests were looked at. `isFull`: one of them had no room. */
  lookedAt(slots: readonly Slot[], isFull: boolean): void {
    this.#isFull = isFull;
    if (isFull) this.#before = write(slots, this.#before);
  }

  /** A request had no room when all were looked at, and none has come or gone since. */
  get wereFull(): boolean {
    return this.#isFull;
  }

  /** A request has come or gone. */
  changed(): void {
    this.#isFull = false;
  }

  /** No request that waits had room at the last look, and no worker has more since, nor are others there. */
  areFull(slots: readonly Slot[]): boolean {
    if (!this.#isFull) return false;
    this.#now = write(slots, this.#now);
    if (this.#now.length !== this.#before.length) return false;
    for (let i = 0; i < this.#now.length; i += 1) {
      if ((this.#now[i] as number) > (this.#before[i] as number)) return false;
    }
    return true;
  }
}

/** One row per worker; larger means more room. The id is there as id and as -id, so that any other worker is a change. */
function write(slots: readonly Slot[], given: Float64Array): Float64Array {
  const length = slots.length * FIGURES;
  const to = given.length === length ? given : new Float64Array(length);
  let at = 0;
  for (const slot of slots) {
    to[at] = slot.workerId;
    to[at + 1] = -slot.workerId;
    to[at + 2] = -slot.inFlight;
    to[at + 3] = slot.kvTokensFree;
    to[at + 4] = -slot.aheadTokens;
    to[at + 5] = -(slot.growthTokens ?? 0);
    to[at + 6] = slot.hasSuspect || slot.isReserved ? 0 : 1;
    to[at + 7] = slot.residents?.size ?? 0;
    at += FIGURES;
  }
  return to;
}
