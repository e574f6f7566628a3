// The index of one tier: its blobs in order of last use, and their bytes. It decides which blobs to evict for
// others. It moves no bytes and deletes nothing.

import { assert } from "../core/base/assert.ts";
import type { KvKey } from "../core/kv/pool.ts";

/**
 * A blob of the embedded pool. `bytes` is null once it is only in its file.
 * file: none -> queued (to be written) -> writing -> written; a queued one can go back to none.
 */
export interface Blob {
  readonly key: KvKey;
  readonly size: number;
  readonly checksum: number;
  bytes: ArrayBuffer | null;
  file: "none" | "queued" | "writing" | "written";
}

export class LruTier {
  readonly bytesMax: number;
  /** Least recently used first: a Map keeps the order of insertion, and `touch` inserts again. */
  readonly #blobs = new Map<KvKey, Blob>();
  #bytes = 0;

  constructor(bytesMax: number) {
    assert(bytesMax >= 0, "a tier's limit is not negative");
    this.bytesMax = bytesMax;
  }

  /** 0 <= bytes <= bytesMax. */
  get bytes(): number {
    return this.#bytes;
  }

  has(blob: Blob): boolean {
    return this.#blobs.get(blob.key) === blob;
  }

  /** Adds the blob as the most recently used. The caller has made room (`victims`). */
  add(blob: Blob): void {
    assert(!this.#blobs.has(blob.key), "a tier holds a key once");
    this.#blobs.set(blob.key, blob);
    this.#bytes += blob.size;
    assert(this.#bytes <= this.bytesMax, "a tier stays within its limit");
  }

  /** Makes a blob of this tier the most recently used. */
  touch(blob: Blob): void {
    assert(this.has(blob), "only a blob of this tier can be touched");
    this.#blobs.delete(blob.key);
    this.#blobs.set(blob.key, blob);
  }

  remove(blob: Blob): void {
    if (!this.has(blob)) return;
    this.#blobs.delete(blob.key);
    this.#bytes -= blob.size;
  }

  /** The blobs to evict so that `size` more bytes fit, least recently used first. null: they never do. */
  victims(size: number): readonly Blob[] | null {
    const victims: Blob[] = [];
    let excess = this.#bytes + size - this.bytesMax;
    if (excess <= 0) return victims;
    for (const blob of this.#blobs.values()) {
      victims.push(blob);
      excess -= blob.size;
      if (excess <= 0) return victims;
    }
    return null;
  }
}
