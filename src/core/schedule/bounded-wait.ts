// Two bounds on an order by length. Such an order lets smaller requests pass a large one that waits for room.
//
// Tail: where KV is short the large ones pile up, and at the end two do not fit into one worker, and run one after the
// other. So once the rows of all open requests take less time than the rest of the steps, the request with the fewest
// tokens goes first and none is passed: all grow alike, and each step has as many of them as it can. Before that, steps
// of fewer requests are shorter, and the room that is left empty would cost more.
//
// Bound: where new requests come all the time, there may always be one that the order prefers, and another waits
// without end. So a request goes first once ROUNDS times as many requests as were open at most have ended since it
// came. In a synchronous iteration fewer than that end in all.

import type { Turnover } from "../context/turnover.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import type { Slot } from "./placement.ts";
import type { SchedulePolicy } from "./policy.ts";

/** By Little's law a request ends, on average, when as many have ended as were open when it came. */
export const ROUNDS = 2;

/** The tail is at most this part of the requests: room that is too small for a large one stays empty meanwhile. */
const TAIL_PART = 1 / 4;

/** Orders of the same requests: each knows all that wait. */
export interface Orders {
  readonly order: SchedulePolicy;
  /** Order of the tail. */
  readonly tail: SchedulePolicy;
  readonly arrivals: SchedulePolicy;
}

export class BoundedWaitPolicy implements SchedulePolicy {
  readonly #orders: Orders;
  readonly #all: readonly SchedulePolicy[];
  readonly #turnover: Turnover;
  /** Rows that take as long as the rest of the workers' steps. */
  #baseRows = 0;

  constructor(orders: Orders, turnover: Turnover) {
    this.#orders = orders;
    this.#all = [orders.order, orders.tail, orders.arrivals];
    this.#turnover = turnover;
  }

  get isStrict(): boolean {
    const { open, openMax } = this.#turnover;
    return open <= Math.min(this.#baseRows, TAIL_PART * openMax);
  }

  begin(slots: readonly Slot[]): void {
    this.#baseRows = slots.reduce((sum, { baseRows }) => sum + baseRows, 0);
  }

  add(request: RolloutRequest): void {
    for (const order of this.#all) order.add(request);
  }

  peek(): RolloutRequest | null {
    const { order, tail, arrivals } = this.#orders;
    const first = arrivals.peek();
    if (first === null) return null;
    const isBound = this.#turnover.endedSince(first) >= ROUNDS * this.#turnover.openMax;
    return isBound ? first : (this.isStrict ? tail : order).peek();
  }

  take(request: RolloutRequest): void {
    for (const order of this.#all) order.take(request);
  }

  remove(request: RolloutRequest): void {
    for (const order of this.#all) order.remove(request);
  }

  refresh(group: Group): void {
    this.#orders.order.refresh?.(group);
  }

  forget(group: Group): void {
    this.#orders.order.forget?.(group);
  }

  isUrgent(request: RolloutRequest): boolean {
    return this.#orders.order.isUrgent?.(request) ?? false;
  }
}
