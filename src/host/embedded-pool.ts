// The KV pool of one machine: a DRAM tier, then an SSD tier in a file. Every decision (what is stored,
// what is demoted, what goes) is taken at once, in the call that needs the room; only the moving of
// bytes to and from the disk happens in the background.
//
//   put -> memory --(least recently used, no room)--> disk --(no room)--> gone
//                         bytes stay in DRAM until the file has them
//
// It holds KV of one model, engine build and cache layout; the key identifies the rest. It is a cache: a
// fault of the disk is counted and ends in "not stored" or "not found", never in an exception.
// It starts empty: each run numbers its epochs from the start, so files of another run are not valid.

import { tmpdir } from "node:os";
import { crc32 } from "node:zlib";
import { assert } from "../core/base/assert.ts";
import type { KvKey, KvPool, KvPoolStats } from "../core/kv/pool.ts";
import { type Extent, FreeExtents, type TierFile, UnlinkedFile } from "./tier-file.ts";

/** DRAM for blobs on their way to the disk: some hundred milliseconds of writing. */
const PENDING_BYTES_MAX = 64 * 1024 * 1024;

export interface PoolOptions {
  readonly poolMemoryBytes: number;
  /** 0: no SSD tier. */
  readonly poolDiskBytes: number;
  /** Directory of the pool's file; null: the system's temporary one. */
  readonly poolDir: string | null;
}

export function openPool(options: PoolOptions): EmbeddedKvPool {
  const { poolMemoryBytes: memoryBytesMax, poolDiskBytes: bytesMax } = options;
  if (bytesMax === 0) return new EmbeddedKvPool({ memoryBytesMax, disk: null });
  const file = new UnlinkedFile(options.poolDir ?? tmpdir());
  const disk = { file, bytesMax, pendingBytesMax: PENDING_BYTES_MAX };
  return new EmbeddedKvPool({ memoryBytesMax, disk });
}

export interface EmbeddedKvPoolOptions {
  /** Limit of the DRAM tier. */
  readonly memoryBytesMax: number;
  /** null: what does not fit in memory is dropped. */
  readonly disk: {
    readonly file: TierFile;
    readonly bytesMax: number;
    /** DRAM for blobs that are being written to the disk, besides `memoryBytesMax`. Blobs beyond it are dropped. */
    readonly pendingBytesMax: number;
  } | null;
}

interface Blob {
  readonly key: KvKey;
  readonly size: number;
  readonly checksum: number;
  /** null: the blob is in the file alone, or dropped. */
  bytes: ArrayBuffer | null;
  /** Its place in the file, once it is in the disk tier. */
  extents: readonly Extent[];
}

/** The index of one tier: its blobs in order of last use, and their bytes. It moves no bytes. 0 <= bytes <= bytesMax. */
class LruTier {
  readonly #bytesMax: number;
  /** Least recently used first: a Map keeps the order of insertion, and `touch` inserts again. */
  readonly #blobs = new Map<KvKey, Blob>();
  bytes = 0;

  constructor(bytesMax: number) {
    assert(bytesMax >= 0, "a tier's limit is not negative");
    this.#bytesMax = bytesMax;
  }

  get(key: KvKey): Blob | undefined {
    return this.#blobs.get(key);
  }

  values(): Blob[] {
    return [...this.#blobs.values()];
  }

  /** Adds the blob as the most recently used. The caller has made room (`victims`). */
  add(blob: Blob): void {
    assert(!this.#blobs.has(blob.key), "a tier holds a key once");
    this.#blobs.set(blob.key, blob);
    this.bytes += blob.size;
    assert(this.bytes <= this.#bytesMax, "a tier stays within its limit");
  }

  /** Makes a blob the most recently used. false: it is not in this tier. */
  touch(blob: Blob): boolean {
    if (this.#blobs.get(blob.key) !== blob) return false;
    this.#blobs.delete(blob.key);
    this.#blobs.set(blob.key, blob);
    return true;
  }

  /** false: the blob is not in this tier. */
  remove(blob: Blob): boolean {
    if (this.#blobs.get(blob.key) !== blob) return false;
    this.#blobs.delete(blob.key);
    this.bytes -= blob.size;
    return true;
  }

  /** The blobs to evict so that `size` more bytes fit, least recently used first. null: they never do. */
  victims(size: number): readonly Blob[] | null {
    const victims: Blob[] = [];
    let excess = this.bytes + size - this.#bytesMax;
    for (const blob of this.#blobs.values()) {
      if (excess <= 0) break;
      victims.push(blob);
      excess -= blob.size;
    }
    return excess <= 0 ? victims : null;
  }
}

export class EmbeddedKvPool implements KvPool {
  readonly #file: TierFile | null;
  readonly #free: FreeExtents;
  readonly #pendingBytesMax: number;
  readonly #memory: LruTier;
  readonly #disk: LruTier;
  /** Resolves when all writes so far have ended. They run one after the other, so that the last one to a place stays. */
  #disked: Promise<void> = Promise.resolve();
  #closed: Promise<void> | null = null;
  /** Bytes of blobs that wait for the disk, or are being written. A blob that is dropped meanwhile counts until its turn. */
  #pendingBytes = 0;
  readonly #counts = { puts: 0, hits: 0, misses: 0, corrupt: 0, evictions: 0, diskErrors: 0 };

  constructor(options: EmbeddedKvPoolOptions) {
    const pendingBytesMax = options.disk?.pendingBytesMax ?? 0;
    assert(pendingBytesMax >= 0, "the limit on pending bytes is not negative");
    this.#memory = new LruTier(options.memoryBytesMax);
    this.#disk = new LruTier(options.disk?.bytesMax ?? 0);
    this.#file = options.disk?.file ?? null;
    this.#free = new FreeExtents(options.disk?.bytesMax ?? 0);
    this.#pendingBytesMax = pendingBytesMax;
  }

  put(key: KvKey, bytes: ArrayBuffer): boolean {
    if (this.#closed !== null || bytes.byteLength === 0) return false;
    if (this.#blobOf(key) !== undefined) return true;
    const size = bytes.byteLength;
    const victims = this.#memory.victims(size);
    if (victims === null) return false;
    for (const victim of victims) this.#demote(victim);
    const checksum = crc32(new Uint8Array(bytes));
    this.#memory.add({ key, size, checksum, bytes, extents: [] });
    this.#counts.puts += 1;
    return true;
  }

  #blobOf(key: KvKey): Blob | undefined {
    return this.#memory.get(key) ?? this.#disk.get(key);
  }

  async get(key: KvKey): Promise<ArrayBuffer | null> {
    const blob = this.#blobOf(key);
    const bytes = blob === undefined ? null : await this.#fetch(blob);
    if (bytes === null) this.#counts.misses += 1;
    else this.#counts.hits += 1;
    return bytes;
  }

  release(keys: readonly KvKey[]): void {
    for (const key of keys) {
      const blob = this.#blobOf(key);
      if (blob !== undefined) this.#drop(blob);
    }
  }

  stats(): KvPoolStats {
    return {
      memoryBytes: this.#memory.bytes + this.#pendingBytes,
      diskBytes: this.#disk.bytes,
      ...this.#counts,
    };
  }

  /** Resolves when everything decided so far has been done on disk. */
  async settled(): Promise<void> {
    for (let last: Promise<void> | null = null; last !== this.#disked; ) {
      last = this.#disked;
      await last;
    }
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    for (const blob of [...this.#memory.values(), ...this.#disk.values()]) this.#drop(blob);
    await this.settled();
    await this.#file?.close().catch(() => {
      this.#counts.diskErrors += 1;
    });
  }

  /** A copy of the blob's bytes, with the checksum verified. null: they are lost or damaged, and the blob is dropped. */
  async #fetch(blob: Blob): Promise<ArrayBuffer | null> {
    if (!this.#memory.touch(blob)) this.#disk.touch(blob);
    let copy: ArrayBuffer | null = null;
    let hasFailed = false;
    if (blob.bytes !== null) {
      copy = blob.bytes.slice(0);
    } else {
      try {
        copy = (await this.#file?.read(blob.extents)) ?? null;
      } catch {
        hasFailed = true;
      }
      // Released or evicted during the read: then it is not there any more.
      if (this.#disk.get(blob.key) !== blob) return null;
    }
    if (copy !== null && crc32(new Uint8Array(copy)) === blob.checksum) return copy;
    if (hasFailed) this.#counts.diskErrors += 1;
    else this.#counts.corrupt += 1;
    this.#drop(blob);
    return null;
  }

  /** Moves a blob from the memory tier to the disk tier, or drops it where there is no room for it. */
  #demote(blob: Blob): void {
    const fits = this.#pendingBytes + blob.size <= this.#pendingBytesMax;
    const victims = this.#file !== null && fits ? this.#disk.victims(blob.size) : null;
    if (victims === null) {
      this.#counts.evictions += 1;
      this.#drop(blob);
      return;
    }
    for (const victim of victims) {
      this.#counts.evictions += 1;
      this.#drop(victim);
    }
    this.#memory.remove(blob);
    this.#disk.add(blob);
    blob.extents = this.#free.take(blob.size);
    this.#pendingBytes += blob.size;
    this.#disked = this.#disked.then(() => this.#write(blob));
  }

  /** Writes the blob, unless it was dropped meanwhile. It is read from DRAM until it is whole on the disk. */
  async #write(blob: Blob): Promise<void> {
    const { bytes, extents } = blob;
    try {
      if (bytes !== null) await this.#file?.write(extents, bytes);
      blob.bytes = null;
    } catch {
      this.#counts.diskErrors += 1;
      if (this.#drop(blob)) this.#counts.evictions += 1;
    }
    this.#pendingBytes -= blob.size;
  }

  /** Removes a blob from its tier, and frees its place in the file. false: it was dropped before. */
  #drop(blob: Blob): boolean {
    const isOnDisk = this.#disk.remove(blob);
    if (isOnDisk) this.#free.give(blob.extents);
    blob.bytes = null;
    return isOnDisk || this.#memory.remove(blob);
  }
}
