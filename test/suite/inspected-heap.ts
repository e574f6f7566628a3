// The heap with what tests and benches look at, which nothing else asks for.

import { Heap } from "../../src/core/wasm/heap.ts";

export class InspectedHeap extends Heap {
  get size(): number {
    return this.core.heap_count(this.handle);
  }

  /** Removes and returns the first id; null if there is none. */
  pop(): number | null {
    const id = this.peek();
    if (id !== null) this.core.heap_pop(this.handle);
    return id;
  }

  has(id: number): boolean {
    return this.core.heap_has(this.handle, id) !== 0;
  }

  /** null if the id is not there. */
  key(id: number): number | null {
    return this.has(id) ? this.core.heap_key(this.handle, id) : null;
  }

  /** 0 if sound, else the number of the broken rule (assembly/heap/check.ts). */
  check(): number {
    return this.core.heap_check(this.handle);
  }

  /** The heap must not be used afterwards. */
  free(): void {
    this.core.heap_drop(this.handle);
  }
}
