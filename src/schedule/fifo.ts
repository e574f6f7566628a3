// First come, first served over requests: a request that has begun keeps its place in the queue.
// The order of the `group` and `divided` policies, which know nothing about lengths.

import type { Request, RequestBuffer } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

export class FifoPolicy implements SchedulePolicy {
  readonly #heap: Heap;
  readonly #buffer: RequestBuffer;

  constructor(buffer: RequestBuffer, heap: Heap) {
    this.#buffer = buffer;
    this.#heap = heap;
  }

  add(request: Request): void {
    const key = request.priority * PRIORITY_STRIDE + request.spec.requestId;
    this.#heap.push(request.index, key);
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

  isUrgent(): boolean {
    return false;
  }
}
