// Orders requests by one number each, the lowest first. What the number is makes the policy; equal numbers go by the
// request's index. The number is taken when a request becomes a candidate and does not change until it is taken out.

import type { Group, Request, RequestBuffer } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

export class KeyedPolicy implements SchedulePolicy {
  readonly #buffer: RequestBuffer;
  readonly #heap: Heap;
  readonly #keyOf: (request: Request) => number;

  constructor(options: {
    buffer: RequestBuffer;
    heap: Heap;
    keyOf: (request: Request) => number;
  }) {
    this.#buffer = options.buffer;
    this.#heap = options.heap;
    this.#keyOf = options.keyOf;
  }

  add(request: Request): void {
    this.#heap.push(request.index, this.#keyOf(request));
  }

  peek(): Request | null {
    const index = this.#heap.peek();
    return index === null ? null : this.#buffer.requestAt(index);
  }

  take(request: Request): void {
    this.#heap.remove(request.index);
  }

  remove(request: Request): void {
    this.#heap.remove(request.index);
  }

  refresh(): void {}

  forget(): void {}

  compare(a: Request, b: Request): number {
    return this.#keyOf(a) - this.#keyOf(b) || a.index - b.index;
  }

  isUrgent(): boolean {
    return false;
  }
}

/**
 * First come, first served: a request that has begun keeps its place. The order of `group` and `divided`, which know
 * nothing about lengths.
 */
export function byArrival(request: Request): number {
  return request.priority * PRIORITY_STRIDE + request.spec.requestId;
}

/** A prior is at most 2^20 tokens: this part of it is less than a token. */
const TIE = 2 ** -21;

/**
 * Foretoken's own order: the request with the fewest tokens goes first. It needs no estimate: every response gets
 * through its early tokens soon, so the ones that turn out long are found while there is still other work to run
 * beside them, whatever their siblings did. (Estimates fail where they matter: on the response that is ten times as
 * long as its group's others, which longest-group-first starts last. docs/SIMULATOR.md has the comparison.) Of requests with
 * equally many tokens, those go first whose prompt had the longest responses in the epoch before: `priorOf`, null where
 * that is not known. As a larger part of the key it costs more than it brings (docs/experiments/history.md).
 */
export function byFewestTokens(priorOf: (group: Group) => number | null) {
  return (request: Request): number =>
    request.priority * PRIORITY_STRIDE +
    request.response.length -
    (priorOf(request.group) ?? 0) * TIE;
}
