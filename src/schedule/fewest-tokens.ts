// Foretoken's own order: the request with the fewest tokens goes first. It needs no estimate: every response gets
// through its early tokens soon, so the ones that turn out long are found while there is still other work to
// run beside them, whatever their siblings did. (Estimates fail where they matter: on the response that is ten
// times as long as its group's others, which longest-group-first starts last. docs/SIMULATOR.md has the comparison.)

import type { Request, RequestBuffer } from "../request/buffer.ts";
import type { Heap } from "../wasm/heap.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";

export class FewestTokensPolicy implements SchedulePolicy {
  readonly #buffer: RequestBuffer;
  readonly #heap: Heap;

  constructor(options: { buffer: RequestBuffer; heap: Heap }) {
    this.#buffer = options.buffer;
    this.#heap = options.heap;
  }

  add(request: Request): void {
    this.#heap.push(request.index, request.priority * PRIORITY_STRIDE + request.response.length);
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
