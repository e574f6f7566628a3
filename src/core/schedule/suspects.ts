// Suspects that wait: requests with which a worker has died. They are in quarantine: no worker runs two of them, so that
// the next death has one explanation, and half of the workers run none.

import type { RolloutRequest } from "../request/buffer.ts";
import type { Slot } from "./placement.ts";

export class Suspects {
  /** In order of arrival. */
  readonly waiting = new Set<RolloutRequest>();

  /** The suspects that wait, while another one may start: new requests need the other half of the workers. */
  *startable(slots: readonly Slot[]): Iterable<RolloutRequest> {
    const most = Math.max(1, Math.floor(slots.length / 2));
    const running = () => slots.reduce((sum, slot) => sum + (slot.hasSuspect ? 1 : 0), 0);
    for (const request of this.waiting) {
      if (running() >= most) return;
      yield request;
    }
  }
}
