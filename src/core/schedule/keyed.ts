// Orders requests by one number each, the lowest first. What the number is makes the policy; equal numbers go by the
// request's index, which is used again and so is not its arrival. The number is taken when a request becomes a
// candidate and does not change until it is taken out.

import type { Requests, RolloutRequest } from "../request/buffer.ts";
import { Heap } from "../wasm/heap.ts";
import type { CoreExports } from "../wasm/load.ts";
import type { SchedulePolicy } from "./policy.ts";

export class KeyedPolicy implements SchedulePolicy {
  readonly #buffer: Requests;
  readonly #heap: Heap;
  readonly #keyOf: (request: RolloutRequest) => number;

  /** `core`: holds the heap. */
  constructor(
    { buffer, core }: { buffer: Requests; core: CoreExports },
    keyOf: (request: RolloutRequest) => number,
  ) {
    this.#buffer = buffer;
    this.#heap = new Heap(core);
    this.#keyOf = keyOf;
  }

  add(request: RolloutRequest): void {
    this.#heap.push(request.index, this.#keyOf(request));
  }

  peek(): RolloutRequest | null {
    const index = this.#heap.peek();
    return index === null ? null : this.#buffer.requestAt(index);
  }

  take(request: RolloutRequest): void {
    this.#heap.remove(request.index);
  }

  remove(request: RolloutRequest): void {
    this.#heap.remove(request.index);
  }
}
