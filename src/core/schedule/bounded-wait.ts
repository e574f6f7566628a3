// Bounds the wait that an order by length causes. Where new requests come all the time, there may always be one that
// such an order prefers, and another waits without end. So a request goes first once ROUNDS times as many requests as
// were open at most have ended since it came. In a synchronous iteration fewer than that end in all, and the order is
// the policy's alone.

import type { Turnover } from "../context/turnover.ts";
import type { Group, Request, RequestBuffer } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { byArrival } from "./by-arrival.ts";
import type { SchedulePolicy } from "./policy.ts";

/** By Little's law a request ends, on average, when as many have ended as were open when it came. */
export const ROUNDS = 2;

export class BoundedWaitPolicy implements SchedulePolicy {
  readonly #policy: SchedulePolicy;
  readonly #buffer: RequestBuffer;
  readonly #turnover: Turnover;
  /** Waiting requests in order of arrival, within a client's priority. */
  readonly #arrivals: Heap;
  /** Request id of each entry, and how many requests had ended at its arrival, by request index. */
  readonly #ids: number[] = [];
  readonly #endedBefore: number[] = [];

  constructor(options: {
    policy: SchedulePolicy;
    buffer: RequestBuffer;
    turnover: Turnover;
    arrivals: Heap;
  }) {
    this.#policy = options.policy;
    this.#buffer = options.buffer;
    this.#turnover = options.turnover;
    this.#arrivals = options.arrivals;
  }

  get isStrict(): boolean {
    return this.#policy.isStrict === true;
  }

  add(request: Request): void {
    const { index } = request;
    if (this.#ids[index] !== request.spec.requestId) {
      this.#ids[index] = request.spec.requestId;
      this.#endedBefore[index] = this.#turnover.ended;
    }
    this.#arrivals.push(index, byArrival(request));
    this.#policy.add(request);
  }

  peek(): Request | null {
    const first = this.#arrivals.peek();
    if (first === null) return null;
    const { ended, openMax } = this.#turnover;
    const passed = ended - (this.#endedBefore[first] ?? ended);
    return passed >= ROUNDS * openMax ? this.#buffer.requestAt(first) : this.#policy.peek();
  }

  take(request: Request): void {
    this.#arrivals.remove(request.index);
    this.#policy.take(request);
  }

  remove(request: Request): void {
    this.#arrivals.remove(request.index);
    this.#policy.remove(request);
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
