// An indexed priority queue in the core: integer ids ordered by (key, id), lowest first. Owns its
// entries in the instance's memory.

import { assert } from "../base/assert.ts";
import { AppError } from "../base/errors.ts";
import { STATUS_ABSENT, STATUS_DUPLICATE, STATUS_FULL } from "./abi.ts";
import type { CoreExports } from "./load.ts";

/** Ids are dense integers, 0 <= id < 2^24: memory grows with the largest. Keys are any number but NaN. */
export class Heap {
  protected readonly core: CoreExports;
  protected readonly handle: number;

  /** Throws AppError `core_full`. */
  constructor(core: CoreExports) {
    this.core = core;
    this.handle = core.heap_create();
    if (this.handle < 0) throw full();
  }

  /** Adds an id, which the heap must not hold yet. Throws AppError `core_full`. */
  push(id: number, key: number): void {
    checkEntry(id, key);
    const status = this.core.heap_push(this.handle, id, key);
    if (status === STATUS_FULL) throw full();
    assert(status !== STATUS_DUPLICATE, "heap: an id is pushed once");
  }

  peek(): number | null {
    const id = this.core.heap_peek(this.handle);
    return id === STATUS_ABSENT ? null : id;
  }

  /** Changes the key of an id; false: the heap does not hold it. */
  update(id: number, key: number): boolean {
    checkEntry(id, key);
    const status = this.core.heap_update(this.handle, id, key);
    return status !== STATUS_ABSENT;
  }

  /** Removes an id; false: the heap does not hold it. */
  remove(id: number): boolean {
    const status = this.core.heap_remove(this.handle, id);
    return status !== STATUS_ABSENT;
  }
}

const ID_END = 1 << 24;

function checkEntry(id: number, key: number): void {
  assert(id >= 0 && id < ID_END && Number.isInteger(id), "heap: an id is in [0, 2^24)");
  assert(!Number.isNaN(key), "heap: a key is not a number");
}

function full(): AppError {
  return new AppError("core_full", "the core's byte limit leaves no room for a heap entry");
}
