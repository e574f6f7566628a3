// The pool's disk operations, executed in order in the background. The order matters:
// the file of an evicted blob is deleted before the one that replaces it is written, and a name is never
// written and removed at the same time. Its length is bounded by the pool: a write and a removal a blob.

/** Done operations kept before the list is cut: small against a queue of any length. */
const COMPACT_AT = 256;

/** One operation. It reports its own failure: it never rejects. */
export type DiskOperation = () => Promise<unknown>;

export class DiskQueue {
  #operations: DiskOperation[] = [];
  #next = 0;
  #running: Promise<void> | null = null;

  push(operation: DiskOperation): void {
    this.#operations.push(operation);
    this.#running ??= this.#run();
  }

  /** Drops operations that have not begun. */
  clear(): void {
    this.#operations = [];
    this.#next = 0;
  }

  /** Resolves when nothing is left to do. */
  async idle(): Promise<void> {
    while (this.#running !== null) await this.#running;
  }

  async #run(): Promise<void> {
    // The caller never waits for the disk, not even for the first operation to begin.
    await null;
    while (this.#next < this.#operations.length) {
      const operation = this.#operations[this.#next];
      this.#next += 1;
      if (this.#next >= COMPACT_AT && this.#next * 2 >= this.#operations.length) this.#compact();
      await operation?.();
    }
    this.clear();
    this.#running = null;
  }

  /** Removes finished operations from the array, so that a queue that never empties stays bounded. */
  #compact(): void {
    this.#operations.splice(0, this.#next);
    this.#next = 0;
  }
}
