// The KV pool's port: immutable blobs of KV, keyed by the input that they were computed from, in DRAM and
// then on SSD until their request finishes. It is a cache: after a miss, KV is computed again.

/** Identifies the prefix of tokens, and the weights that computed its KV. See `kvKey`. */
export type KvKey = string & { readonly __kvKey: true };

export interface KvPoolStats {
  /** Includes blobs that are being written to the disk. */
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
  /** Stores a blob and owns `bytes` from then on. A second put of a key is ignored. false: no room, not stored. */
  put(key: KvKey, bytes: ArrayBuffer): boolean;
  /** A blob, which the caller then owns. null: there is none, or it is corrupt (and is removed). */
  get(key: KvKey): Promise<ArrayBuffer | null>;
  /** Removes blobs of a finished request. */
  release(keys: readonly KvKey[]): void;
  stats(): KvPoolStats;
  /** Frees the pool's memory and disk. */
  close(): Promise<void>;
}
