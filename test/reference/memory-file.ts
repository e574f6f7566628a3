// A disk in memory that fails and dawdles on demand, for the tests of the SSD tier. Like a real one it
// leaves half of the bytes behind when a write fails.

import type { Extent, TierFile } from "../../src/host/tier-file.ts";

export type FileOperation = "write" | "read" | "close";

export class MemoryFile implements TierFile {
  bytes = new Uint8Array(0);
  isClosed = false;
  /** Runs before every operation; what it throws is the operation's failure. */
  before: (operation: FileOperation) => Promise<void> = async () => undefined;

  async write(extents: readonly Extent[], bytes: ArrayBuffer): Promise<void> {
    this.#put(extents, new Uint8Array(bytes, 0, bytes.byteLength >>> 1));
    await this.before("write");
    this.#put(extents, new Uint8Array(bytes));
  }

  #put(extents: readonly Extent[], bytes: Uint8Array): void {
    let from = 0;
    for (const { at, size } of extents) {
      const part = bytes.subarray(from, from + size);
      const larger = new Uint8Array(Math.max(this.bytes.length, at + part.length));
      larger.set(this.bytes);
      larger.set(part, at);
      this.bytes = larger;
      from += size;
    }
  }

  async read(extents: readonly Extent[]): Promise<ArrayBuffer> {
    await this.before("read");
    const parts = extents.map(({ at, size }) => this.bytes.subarray(at, at + size));
    return new Uint8Array(Buffer.concat(parts)).buffer;
  }

  async close(): Promise<void> {
    await this.before("close");
    this.isClosed = true;
  }
}

export function failure(code: string): Error {
  return Object.assign(new Error(code), { code });
}
