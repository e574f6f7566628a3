// A disk in memory that fails and dawdles on demand, for the tests of the SSD tier. Like a real one it
// leaves half a file behind when a write fails.

import type { TierFiles } from "../../src/host/tier-files.ts";

export type FileOperation = "write" | "read" | "remove" | "removeAll";

export class MemoryFiles implements TierFiles {
  readonly files = new Map<string, Uint8Array>();
  /** Runs before every operation; what it throws is the operation's failure. */
  before: (operation: FileOperation, path: string) => Promise<void> = async () => undefined;
  /** The most bytes that ever lay on the disk. */
  bytesPeak = 0;

  async write(path: string, bytes: ArrayBuffer): Promise<void> {
    this.files.set(path, new Uint8Array(bytes.slice(0, bytes.byteLength >>> 1)));
    await this.before("write", path);
    this.files.set(path, new Uint8Array(bytes.slice(0)));
    this.bytesPeak = Math.max(this.bytesPeak, this.bytes());
  }

  async read(path: string, bytes: number): Promise<ArrayBuffer | null> {
    await this.before("read", path);
    const file = this.files.get(path);
    if (file === undefined) throw failure("ENOENT");
    return file.byteLength === bytes ? new Uint8Array(file).buffer : null;
  }

  async remove(path: string): Promise<void> {
    await this.before("remove", path);
    this.files.delete(path);
  }

  async removeAll(): Promise<void> {
    await this.before("removeAll", "");
    this.files.clear();
  }

  bytes(): number {
    let sum = 0;
    for (const file of this.files.values()) sum += file.byteLength;
    return sum;
  }
}

export function failure(code: string): Error {
  return Object.assign(new Error(code), { code });
}
