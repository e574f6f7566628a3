// Lets the last requests of an iteration end together. Orders by length let smaller requests pass a large one that waits
// for room, and where KV is short the large ones pile up: at the end two do not fit into one worker, and they run one
// after the other. So once few requests are open, the one with the fewest tokens goes first and none is passed: all of
// them grow alike, while there are enough to fill the workers.

import type { Turnover } from "../context/turnover.ts";
import type { Group, Request } from "../request/buffer.ts";
import type { SchedulePolicy } from "./policy.ts";

/**
 * Open requests as a part of the most that were open, from which on the tail begins. Tails of the demo are alike from
 * 0.2 to 0.8; from 0.6 on the iteration takes up to 1.5 % longer, since what small requests do not fill stays empty.
 */
const TAIL_PART = 1 / 4;
/** Where more are open, workers are full without it: some engines have hundreds of requests. */
const TAIL_MAX = 128;

export class EvenTailPolicy implements SchedulePolicy {
  readonly #policy: SchedulePolicy;
  readonly #tail: SchedulePolicy;
  readonly #turnover: Turnover;

  /** `tail` orders the last requests, `policy` those before; each knows all that wait. */
  constructor(options: { policy: SchedulePolicy; tail: SchedulePolicy; turnover: Turnover }) {
    this.#policy = options.policy;
    this.#tail = options.tail;
    this.#turnover = options.turnover;
  }

  get isStrict(): boolean {
    const { open, openMax } = this.#turnover;
    return open <= Math.min(TAIL_MAX, TAIL_PART * openMax);
  }

  add(request: Request): void {
    this.#policy.add(request);
    this.#tail.add(request);
  }

  peek(): Request | null {
    return this.isStrict ? this.#tail.peek() : this.#policy.peek();
  }

  take(request: Request): void {
    this.#policy.take(request);
    this.#tail.take(request);
  }

  remove(request: Request): void {
    this.#policy.remove(request);
    this.#tail.remove(request);
  }

  refresh(group: Group): void {
    this.#policy.refresh(group);
  }

  forget(group: Group): void {
    this.#policy.forget(group);
  }

  isUrgent(request: Request): boolean {
    return this.#policy.isUrgent(request);
  }
}
