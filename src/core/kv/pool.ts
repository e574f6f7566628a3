// The KV pool's port: immutable blobs of KV, found by what they were computed from, kept in DRAM and
// then on SSD until their request finishes. A cache and never the only copy: a miss means recompute.

/** (epoch, prefix hash): the tokens, in order, and the weights that made the KV. */
export type KvKey = string & { readonly __kvKey: true };

export interface KvPoolStats {
  /** Bytes on their way to the disk included. */
  readonly memoryBytes: number;
  readonly diskBytes: number;
  readonly puts: number;
  readonly hits: number;
  readonly misses: number;
  /** Blobs dropped because their checksum was wrong. */
  readonly corrupt: number;
  /** Blobs dropped to stay within a limit, or because the disk refused them. */
  readonly evictions: number;
  readonly diskErrors: number;
}

export interface KvPool {
  /** Write-once: a second put of a key is ignored. Takes ownership of `bytes`. false: no room, not stored. */
  put(key: KvKey, bytes: ArrayBuffer): boolean;
  /** null: not there, or corrupt (then removed). The caller owns what it gets. */
  get(key: KvKey): Promise<ArrayBuffer | null>;
  /** Keeps a blob from eviction until now + ttl; never shortens an earlier lease. false: it is not there. */
  lease(key: KvKey, ttlMs: number): boolean;
  /** Removes blobs whose request finished; a leased blob too (the request that leased it is the one that ended). */
  release(keys: readonly KvKey[]): void;
  stats(): KvPoolStats;
  /** Deletes what it holds on disk. */
  close(): Promise<void>;
}
