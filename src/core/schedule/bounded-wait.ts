// A bound on every order: where new requests come all the time, there may always be one that the order prefers, by its
// length, its priority or its session, and another waits without end. So a request goes first, whatever it is, once ROUNDS
// times as many requests as were open at most have ended since it came. In a synchronous iteration fewer than that end.

import type { Turnover } from "../context/turnover.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import { KeyedPolicy } from "./keyed.ts";
import type { Slot } from "./placement.ts";
import type { SchedulePolicy } from "./policy.ts";

/** By Little's law a request ends, on average, when as many have ended as were open when it came. */
export const ROUNDS = 2;

export class BoundedWaitPolicy implements SchedulePolicy {
  readonly #order: SchedulePolicy;
  readonly #arrivals: SchedulePolicy;
  readonly #turnover: Turnover;

  /** `order` returns null where none goes ahead of those that came first. */
  constructor(
    parts: ConstructorParameters<typeof KeyedPolicy>[0],
    order: SchedulePolicy,
    turnover: Turnover,
  ) {
    this.#order = order;
    this.#arrivals = new KeyedPolicy(parts, ({ spec }) => spec.requestId);
    this.#turnover = turnover;
  }

  begin(slots: readonly Slot[]): void {
    this.#order.begin?.(slots);
  }

  add(request: RolloutRequest): void {
    this.#order.add(request);
    this.#arrivals.add(request);
  }

  peek(): RolloutRequest | null {
    return this.overdue() ?? this.#order.peek() ?? this.#arrivals.peek();
  }

  overdue(): RolloutRequest | null {
    const first = this.#arrivals.peek();
    if (first === null) return null;
    const isOver = this.#turnover.endedSince(first) >= ROUNDS * this.#turnover.openMax;
    return isOver ? first : null;
  }

  take(request: RolloutRequest): void {
    this.#order.take(request);
    this.#arrivals.take(request);
  }

  remove(request: RolloutRequest): void {
    this.#order.remove(request);
    this.#arrivals.remove(request);
  }

  refresh(group: Group): void {
    this.#order.refresh?.(group);
  }

  forget(group: Group): void {
    this.#order.forget?.(group);
  }

  isUrgent(request: RolloutRequest): boolean {
    return this.#order.isUrgent?.(request) ?? false;
  }
}
