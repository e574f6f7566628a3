// First come, first served over requests: a request that has begun keeps its place in the queue.
// The order of the `group` and `divided` policies, which know nothing about lengths.

import { present } from "../base/assert.ts";
import type { Request } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import type { SchedulePolicy } from "./policy.ts";

export class FifoPolicy implements SchedulePolicy {
  readonly #heap: Heap;
  readonly #requests: readonly Request[];

  constructor(requests: readonly Request[], heap: Heap) {
    this.#requests = requests;
    this.#heap = heap;
  }

  add(request: Request): void {
    this.#heap.push(request.spec.requestId, request.spec.requestId);
  }

  peek(): Request | null {
    const id = this.#heap.peek();
    return id === null ? null : present(this.#requests[id], `request ${id} is not in the buffer`);
  }

  take(request: Request): void {
    this.#heap.remove(request.spec.requestId);
  }

  refresh(): void {}

  isUrgent(): boolean {
    return false;
  }
}
