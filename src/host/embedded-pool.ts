// The KV pool of one machine: a DRAM tier, then an SSD tier in a directory. Every decision (what is stored,
// what is demoted, what goes) is taken at once, in the call that needs the room; only the moving of
// bytes to and from the disk happens in the background.
//
//   put -> memory --(least recently used, no room)--> disk --(no room)--> gone
//                         bytes stay in DRAM until the file is complete
//
// It holds KV of one model, engine build and cache layout; the key identifies the rest. It is a cache: a
// fault of the disk is counted and ends in "not stored" or "not found", never in an exception.
// It starts empty: each run numbers its epochs from the start, so files of another run are not valid.

import { tmpdir } from "node:os";
import { crc32 } from "node:zlib";
import { assert } from "../core/base/assert.ts";
import type { KvKey, KvPool, KvPoolStats } from "../core/kv/pool.ts";
import { DirectoryTierFiles, type TierFiles } from "./tier-files.ts";

/** DRAM for blobs on their way to the disk: some hundred milliseconds of writing. */
const PENDING_BYTES_MAX = 64 * 1024 * 1024;

export interface PoolOptions {
  readonly poolMemoryBytes: number;
  /** 0: no SSD tier. */
  readonly poolDiskBytes: number;
  /** Parent of the pool's own directory; null: the system's temporary one. */
  readonly poolDir: string | null;
}

/** The pool's directory is removed when it closes; that of a killed process, when the next pool opens beside it. */
export async function openPool(options: PoolOptions): Promise<EmbeddedKvPool> {
  const { poolMemoryBytes: memoryBytesMax, poolDiskBytes: bytesMax } = options;
  if (bytesMax === 0) return new EmbeddedKvPool({ memoryBytesMax, disk: null });
  const files = await DirectoryTierFiles.open(options.poolDir ?? tmpdir());
  const disk = { files, bytesMax, pendingBytesMax: PENDING_BYTES_MAX };
  return new EmbeddedKvPool({ memoryBytesMax, disk });
}

export interface EmbeddedKvPoolOptions {
  /** Limit of the DRAM tier. */
  readonly memoryBytesMax: number;
  /** null: what does not fit in memory is dropped. */
  readonly disk: {
    readonly files: TierFiles;
    readonly bytesMax: number;
    /** DRAM for blobs that are being written to the disk, besides `memoryBytesMax`. Blobs beyond it are dropped. */
    readonly pendingBytesMax: number;
  } | null;
}

/** `bytes` is null once the blob is only in its file, which is complete then; or once it is dropped. */
interface Blob {
  readonly key: KvKey;
  readonly size: number;
  readonly checksum: number;
  bytes: ArrayBuffer | null;
  hasFile: boolean;
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

  remove(blob: Blob): void {
    if (this.#blobs.get(blob.key) !== blob) return;
    this.#blobs.delete(blob.key);
    this.bytes -= blob.size;
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
  readonly #files: TierFiles | null;
  readonly #pendingBytesMax: number;
  readonly #memory: LruTier;
  readonly #disk: LruTier;
  /** Resolves when all disk operations so far have ended; they run one after the other. */
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
    this.#files = options.disk?.files ?? null;
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
    this.#memory.add({ key, size, checksum, bytes, hasFile: false });
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

  /**
   * Runs a disk operation, which reports its own failure, after those before it: the file of an evicted blob is deleted
   * before the one that replaces it is written. Those that a closed pool has not begun are dropped.
   */
  #later(operation: () => Promise<unknown>): void {
    this.#disked = this.#disked.then(async () => {
      if (this.#closed === null) await operation();
    });
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    for (const blob of [...this.#memory.values(), ...this.#disk.values()]) this.#forget(blob);
    await this.settled();
    this.#pendingBytes = 0;
    await this.#attempt((files) => files.removeAll());
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
        copy = (await this.#files?.read(fileOf(blob), blob.size)) ?? null;
      } catch {
        hasFailed = true;
      }
      // Released or evicted during the read: then it is not there any more.
      if (this.#disk.get(blob.key) !== blob) return null;
    }
    const isWhole = copy?.byteLength === blob.size;
    if (copy !== null && isWhole && crc32(new Uint8Array(copy)) === blob.checksum) return copy;
    if (hasFailed) this.#counts.diskErrors += 1;
    else this.#counts.corrupt += 1;
    this.#drop(blob);
    return null;
  }

  /** Moves a blob from the memory tier to the disk tier, or drops it where there is no room for it. */
  #demote(blob: Blob): void {
    const fits = this.#pendingBytes + blob.size <= this.#pendingBytesMax;
    const victims = this.#files !== null && fits ? this.#disk.victims(blob.size) : null;
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
    this.#pendingBytes += blob.size;
    this.#later(() => this.#write(blob));
  }

  /** Writes the blob's file, unless it was dropped meanwhile. The blob is read from DRAM until that is whole. */
  async #write(blob: Blob): Promise<void> {
    const { bytes } = blob;
    const name = fileOf(blob);
    const isWritten = bytes !== null && (await this.#attempt((files) => files.write(name, bytes)));
    this.#pendingBytes -= blob.size;
    if (bytes === null) return;
    const isKept = this.#disk.get(blob.key) === blob;
    blob.bytes = null;
    blob.hasFile = isWritten;
    if (isWritten && isKept) return;
    // At once: while its file is being removed, another blob may be put under the key.
    if (isKept) {
      this.#counts.evictions += 1;
      this.#forget(blob);
    }
    await this.#attempt((files) => files.remove(name));
  }

  /** Removes a blob from both tiers, its file included. */
  #drop(blob: Blob): void {
    this.#forget(blob);
    if (!blob.hasFile) return;
    const name = fileOf(blob);
    this.#later(() => this.#attempt((files) => files.remove(name)));
  }

  /** Removes a blob from both tiers. The caller removes its file if that is complete. */
  #forget(blob: Blob): void {
    this.#memory.remove(blob);
    this.#disk.remove(blob);
    blob.bytes = null;
  }

  /** Runs one operation on the files. A failure is counted, and returns false. */
  async #attempt(operation: (files: TierFiles) => Promise<void>): Promise<boolean> {
    if (this.#files === null) return true;
    try {
      await operation(this.#files);
      return true;
    } catch {
      this.#counts.diskErrors += 1;
      return false;
    }
  }
}

function fileOf(blob: Blob): string {
  return `${blob.key}.kv`;
}
