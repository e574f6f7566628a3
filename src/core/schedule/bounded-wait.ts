// A bound on an order by length. Where new requests come all the time, there may always be one that the order prefers, and
// another waits without end. So a request goes first once ROUNDS times as many requests as were open at most have ended
// since it came. In a synchronous iteration fewer than that end in all.
// No rule for the end of an iteration: with the last quarter by fewest tokens, steps had 2 to 3 % fewer requests where KV is
// short (docs/experiments/policies.md).

import type { Turnover } from "../context/turnover.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { SchedulePolicy } from "./policy.ts";

/** By Little's law a request ends, on average, when as many have ended as were open when it came. */
export const ROUNDS = 2;

/** Orders of the same requests: each knows all that wait. */
export interface Orders {
  readonly order: SchedulePolicy;
  readonly arrivals: SchedulePolicy;
}

export class BoundedWaitPolicy implements SchedulePolicy {
  readonly #orders: Orders;
  readonly #both: readonly SchedulePolicy[];
  readonly #turnover: Turnover;

  constructor(orders: Orders, turnover: Turnover) {
    this.#orders = orders;
    this.#both = [orders.order, orders.arrivals];
    this.#turnover = turnover;
  }

  add(request: Request): void {
    for (const order of this.#both) order.add(request);
  }

  peek(): Request | null {
    const { order, arrivals } = this.#orders;
    const first = arrivals.peek();
    if (first === null) return null;
    const isBound = this.#turnover.endedSince(first) >= ROUNDS * this.#turnover.openMax;
    return isBound ? first : order.peek();
  }

  take(request: Request): void {
    for (const order of this.#both) order.take(request);
  }

  remove(request: Request): void {
    for (const order of this.#both) order.remove(request);
  }

  refresh(group: Group): void {
    this.#orders.order.refresh(group);
  }

  forget(group: Group): void {
    this.#orders.order.forget(group);
  }

  isUrgent(request: Request): boolean {
    return this.#orders.order.isUrgent(request);
  }
}
