// What a KV pool must hold on any disk. Orders of eviction, leases and releases are compared with a twin, in
// embedded-pool.property.test.ts. Blobs are 1,000 bytes, so that limits read as counts of blobs.

import { expect, test } from "bun:test";
import { type WeightEpoch, weightEpoch } from "../../src/core/base/ids.ts";
import { kvKey } from "../../src/core/kv/key.ts";
import type { KvKey, KvPool } from "../../src/core/kv/pool.ts";

export const BLOB_BYTES = 1000;

export interface PoolLimits {
  readonly memoryBlobs: number;
  readonly diskBlobs: number;
}

export interface PoolHarness {
  readonly pool: KvPool;
  /** Resolves when the background work decided so far is done. */
  settled(): Promise<void>;
}

export const EPOCH_0: WeightEpoch = weightEpoch(0);

/** The key of a one-token prefix. */
export function keyOf(token: number, epoch: WeightEpoch = EPOCH_0): KvKey {
  return kvKey(epoch, Int32Array.of(token), 1);
}

/** Bytes that belong to `token` and to no other. */
export function blobOf(token: number, size = BLOB_BYTES): ArrayBuffer {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i += 1) bytes[i] = (token * 31 + i * 7 + (i >>> 8)) & 255;
  return bytes.buffer;
}

/** A lease of no time: it keeps nothing, and refreshes nothing. */
export function isHeld(pool: KvPool, token: number): boolean {
  return pool.lease(keyOf(token), 0);
}

export function poolSuite(name: string, make: (limits: PoolLimits) => Promise<PoolHarness>): void {
  test(`${name}: get returns the bytes that were put, and they belong to the caller`, async () => {
    const { pool } = await make({ memoryBlobs: 3, diskBlobs: 2 });
    expect(pool.put(keyOf(1), blobOf(1))).toBe(true);
    const first = await pool.get(keyOf(1));
    expect(first).toEqual(blobOf(1));
    expect(pool.stats()).toMatchObject({ puts: 1, hits: 1, misses: 0, memoryBytes: BLOB_BYTES });
    new Uint8Array(first ?? new ArrayBuffer(0)).fill(0);
    expect(await pool.get(keyOf(1))).toEqual(blobOf(1));
    await pool.close();
  });

  test(`${name}: bytes come back from the disk as they were`, async () => {
    const { pool, settled } = await make({ memoryBlobs: 1, diskBlobs: 4 });
    for (const token of [1, 2, 3]) {
      expect(pool.put(keyOf(token), blobOf(token))).toBe(true);
      await settled();
    }
    expect(pool.stats()).toMatchObject({ memoryBytes: BLOB_BYTES, diskBytes: 2 * BLOB_BYTES });
    for (const token of [1, 2, 3]) expect(await pool.get(keyOf(token))).toEqual(blobOf(token));
    expect(pool.stats()).toMatchObject({ hits: 3, evictions: 0, diskErrors: 0 });
    await pool.close();
  });

  test(`${name}: closed, it holds nothing, takes nothing, and can be closed again`, async () => {
    const { pool, settled } = await make({ memoryBlobs: 1, diskBlobs: 4 });
    for (const token of [1, 2]) pool.put(keyOf(token), blobOf(token));
    await settled();
    await pool.close();
    await pool.close();
    expect(pool.put(keyOf(3), blobOf(3))).toBe(false);
    for (const token of [1, 2, 3]) expect(isHeld(pool, token)).toBe(false);
    expect(await pool.get(keyOf(1))).toBeNull();
    expect(pool.lease(keyOf(1), 10)).toBe(false);
    pool.release([keyOf(1)]);
    expect(pool.stats()).toMatchObject({ memoryBytes: 0, diskBytes: 0 });
  });
}
