// The room of all workers as it was at some time, to see whether any has more since.

import type { Slot } from "./placement.ts";

const FIGURES = 8;

export class Rooms {
  #before: Float64Array = new Float64Array(0);
  #now: Float64Array = new Float64Array(0);

  remember(slots: readonly Slot[]): void {
    this.#before = write(slots, this.#before);
  }

  /** Whether a worker has more room than at `remember`, or others are there. */
  haveGrown(slots: readonly Slot[]): boolean {
    this.#now = write(slots, this.#now);
    if (this.#now.length !== this.#before.length) return true;
    for (let i = 0; i < this.#now.length; i += 1) {
      if ((this.#now[i] as number) > (this.#before[i] as number)) return true;
    }
    return false;
  }
}

/** Figures that decide whether a request has room, larger where there is more; a worker's id both ways: none other is it. */
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
