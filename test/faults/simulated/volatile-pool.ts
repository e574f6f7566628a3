import { present } from "../../../src/core/base/assert.ts";
import type { KvKey, KvPool, KvPoolStats } from "../../../src/core/kv/pool.ts";
import { NO_POOL_STATS } from "../../suite/no-figures.ts";

/** A KV pool in memory that may lose everything at any time; leases keep nothing. */
export class VolatilePool implements KvPool {
  readonly #bytesMax: number;
  readonly #blobs = new Map<KvKey, ArrayBuffer>();
  #bytes = 0;
  #counters = { puts: 0, hits: 0, misses: 0, evictions: 0 };

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  put(key: KvKey, bytes: ArrayBuffer): boolean {
    if (this.#blobs.has(key)) return true;
    if (this.#bytes + bytes.byteLength > this.#bytesMax) return false;
    this.#blobs.set(key, bytes);
    this.#bytes += bytes.byteLength;
    this.#counters.puts += 1;
    return true;
  }

  async get(key: KvKey): Promise<ArrayBuffer | null> {
    const blob = this.#blobs.get(key);
    if (blob === undefined) this.#counters.misses += 1;
    else this.#counters.hits += 1;
    return blob ?? null;
  }

  lease(key: KvKey): boolean {
    return this.#blobs.has(key);
  }

  release(keys: readonly KvKey[]): void {
    for (const key of keys) {
      if (!this.#blobs.has(key)) continue;
      this.#bytes -= present(this.#blobs.get(key), "it is there").byteLength;
      this.#blobs.delete(key);
    }
  }

  lose(): void {
    this.#counters.evictions += this.#blobs.size;
    this.#blobs.clear();
    this.#bytes = 0;
  }

  stats(): KvPoolStats {
    return { ...NO_POOL_STATS, memoryBytes: this.#bytes, ...this.#counters };
  }

  async close(): Promise<void> {
    this.lose();
  }
}
