// The SSD tier's file on a real disk. It is unlinked as soon as it is open: nobody else can read it, no pool meets the file
// of another, and its room is free again when the process ends, however that ends.

import { randomUUID } from "node:crypto";
import { type FileHandle, mkdir, open, unlink } from "node:fs/promises";
import { join } from "node:path";
import { writeAt } from "./weights-file.ts";

/** A part of the file. */
export interface Extent {
  readonly at: number;
  readonly size: number;
}

/** Every method rejects when the operation failed; a write may have left a part of the bytes then. */
export interface TierFile {
  write(extents: readonly Extent[], bytes: ArrayBuffer): Promise<void>;
  read(extents: readonly Extent[]): Promise<ArrayBuffer>;
  close(): Promise<void>;
}

/** Only the owner may read KV: prompts and responses can be reconstructed from it. */
const FOLDER_MODE = 0o700;
const FILE_MODE = 0o600;

export class UnlinkedFile implements TierFile {
  readonly #folder: string;
  /** null: nothing has been written yet, or the file could not be opened. */
  #file: FileHandle | null = null;

  /** `folder` need not exist: the first write makes it. */
  constructor(folder: string) {
    this.#folder = folder;
  }

  async write(extents: readonly Extent[], bytes: ArrayBuffer): Promise<void> {
    this.#file ??= await this.#open();
    let from = 0;
    for (const { at, size } of extents) {
      await writeAt(this.#file, new Uint8Array(bytes, from, size), at);
      from += size;
    }
  }

  async #open(): Promise<FileHandle> {
    await mkdir(this.#folder, { recursive: true, mode: FOLDER_MODE });
    const path = join(this.#folder, `foretoken-kv-${randomUUID()}`);
    const file = await open(path, "wx+", FILE_MODE);
    await unlink(path);
    return file;
  }

  async read(extents: readonly Extent[]): Promise<ArrayBuffer> {
    const bytes = new Uint8Array(extents.reduce((sum, { size }) => sum + size, 0));
    let from = 0;
    for (const { at, size } of extents) {
      for (let done = 0; done < size; ) {
        const read = await this.#file?.read(bytes, from + done, size - done, at + done);
        if (!read?.bytesRead) throw new Error("the file ends before the blob");
        done += read.bytesRead;
      }
      from += size;
    }
    return bytes.buffer;
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = null;
  }
}

/** The parts of a file that hold nothing, in order. What is taken may lie in several of them. */
export class FreeExtents {
  #free: Extent[];

  constructor(size: number) {
    this.#free = size === 0 ? [] : [{ at: 0, size }];
  }

  /** Takes `size` bytes from the front; the caller has seen to it that so many are free. */
  take(size: number): Extent[] {
    const taken: Extent[] = [];
    let left = size;
    while (left > 0) {
      const first = this.#free.shift();
      if (first === undefined) throw new Error("a tier has room for what it takes");
      const part = Math.min(left, first.size);
      taken.push({ at: first.at, size: part });
      if (part < first.size) this.#free.unshift({ at: first.at + part, size: first.size - part });
      left -= part;
    }
    return taken;
  }

  give(extents: readonly Extent[]): void {
    const all = [...this.#free, ...extents].sort((a, b) => a.at - b.at);
    this.#free = [];
    for (const { at, size } of all) {
      const last = this.#free.at(-1);
      if (last === undefined || last.at + last.size < at) this.#free.push({ at, size });
      else this.#free[this.#free.length - 1] = { at: last.at, size: last.size + size };
    }
  }
}
