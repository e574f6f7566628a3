// What every KV pool must hold. A backend calls this from its own test file; embedded-pool.property.test.ts compares all
// orders of operations with a twin. Blobs are 1,000 bytes, so that limits read as counts of blobs.

import { expect, test } from "bun:test";
import { type WeightEpoch, weightEpoch } from "../../src/core/base/ids.ts";
import { kvKey } from "../../src/core/kv/key.ts";
import type { KvKey, KvPool } from "../../src/core/kv/pool.ts";
import type { ManualClock } from "./manual-clock.ts";

export const BLOB_BYTES = 1000;

export interface PoolLimits {
  readonly memoryBlobs: number;
  readonly diskBlobs: number;
}

export interface PoolHarness {
  readonly pool: KvPool;
  readonly clock: ManualClock;
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

export function poolSuite(name: string, make: (limits: PoolLimits) => Promise<PoolHarness>): void {
  storageTests(name, make);
  evictionTests(name, make);
  lifetimeTests(name, make);
}

type Make = (limits: PoolLimits) => Promise<PoolHarness>;

/** A lease of no time: it keeps nothing, and refreshes nothing. */
export function isHeld(pool: KvPool, token: number): boolean {
  return pool.lease(keyOf(token), 0);
}

async function putAll(harness: PoolHarness, tokens: readonly number[]): Promise<void> {
  for (const token of tokens) {
    expect(harness.pool.put(keyOf(token), blobOf(token))).toBe(true);
    await harness.settled();
  }
}

function held(harness: PoolHarness, tokens: readonly number[]): number[] {
  return tokens.filter((token) => isHeld(harness.pool, token));
}

function storageTests(name: string, make: Make): void {
  test(`${name}: get returns the bytes that were put`, async () => {
    const { pool } = await make({ memoryBlobs: 3, diskBlobs: 2 });
    expect(pool.put(keyOf(1), blobOf(1))).toBe(true);
    expect(await pool.get(keyOf(1))).toEqual(blobOf(1));
    expect(pool.stats()).toMatchObject({ puts: 1, hits: 1, misses: 0, memoryBytes: BLOB_BYTES });
    await pool.close();
  });

  test(`${name}: what get returned belongs to the caller`, async () => {
    const { pool } = await make({ memoryBlobs: 3, diskBlobs: 2 });
    pool.put(keyOf(1), blobOf(1));
    const first = await pool.get(keyOf(1));
    new Uint8Array(first ?? new ArrayBuffer(0)).fill(0);
    expect(await pool.get(keyOf(1))).toEqual(blobOf(1));
    await pool.close();
  });

  test(`${name}: bytes come back from the disk as they were`, async () => {
    const harness = await make({ memoryBlobs: 1, diskBlobs: 4 });
    await putAll(harness, [1, 2, 3]);
    expect(harness.pool.stats()).toMatchObject({
      memoryBytes: BLOB_BYTES,
      diskBytes: 2 * BLOB_BYTES,
    });
    for (const token of [1, 2, 3]) {
      expect(await harness.pool.get(keyOf(token))).toEqual(blobOf(token));
    }
    expect(harness.pool.stats()).toMatchObject({ hits: 3, evictions: 0, diskErrors: 0 });
    await harness.pool.close();
  });

  test(`${name}: a blob can be had while it is on its way to the disk`, async () => {
    const { pool, settled } = await make({ memoryBlobs: 1, diskBlobs: 4 });
    pool.put(keyOf(1), blobOf(1));
    pool.put(keyOf(2), blobOf(2));
    const [one, two] = await Promise.all([pool.get(keyOf(1)), pool.get(keyOf(2))]);
    expect(one).toEqual(blobOf(1));
    expect(two).toEqual(blobOf(2));
    await settled();
    await pool.close();
  });

  test(`${name}: a blob larger than the memory tier is not stored`, async () => {
    const { pool } = await make({ memoryBlobs: 2, diskBlobs: 4 });
    pool.put(keyOf(1), blobOf(1));
    expect(pool.put(keyOf(2), blobOf(2, 2 * BLOB_BYTES + 1))).toBe(false);
    expect(isHeld(pool, 2)).toBe(false);
    expect(isHeld(pool, 1)).toBe(true);
    expect(pool.stats()).toMatchObject({ puts: 1, evictions: 0 });
    await pool.close();
  });
}

function evictionTests(name: string, make: Make): void {
  const five = [1, 2, 3, 4, 5];

  test(`${name}: the least recently used blob goes first`, async () => {
    const harness = await make({ memoryBlobs: 3, diskBlobs: 2 });
    await putAll(harness, five);
    expect(held(harness, five)).toEqual(five);
    await putAll(harness, [6]);
    expect(held(harness, [...five, 6])).toEqual([2, 3, 4, 5, 6]);
    expect(harness.pool.stats()).toMatchObject({
      evictions: 1,
      memoryBytes: 3 * BLOB_BYTES,
      diskBytes: 2 * BLOB_BYTES,
    });
    await harness.pool.close();
  });

  test(`${name}: a leased blob is passed over until its lease ends`, async () => {
    const harness = await make({ memoryBlobs: 3, diskBlobs: 2 });
    await putAll(harness, [1]);
    expect(harness.pool.lease(keyOf(1), 100)).toBe(true);
    await putAll(harness, [2, 3, 4, 5, 6]);
    expect(held(harness, [1, 2, 3])).toEqual([1, 3]);
    harness.clock.advance(100);
    // Now 1 is the oldest of the memory tier, and then of the disk tier.
    await putAll(harness, [7, 8, 9]);
    expect(held(harness, [1])).toEqual([]);
    await harness.pool.close();
  });

  test(`${name}: a put that only leased blobs could make room for is refused`, async () => {
    const harness = await make({ memoryBlobs: 2, diskBlobs: 2 });
    await putAll(harness, [1, 2]);
    harness.pool.lease(keyOf(1), 100);
    harness.pool.lease(keyOf(2), 100);
    expect(harness.pool.put(keyOf(3), blobOf(3))).toBe(false);
    expect(held(harness, [1, 2, 3])).toEqual([1, 2]);
    expect(harness.pool.stats()).toMatchObject({ puts: 2, evictions: 0 });
    await harness.pool.close();
  });
}

function lifetimeTests(name: string, make: Make): void {
  test(`${name}: release removes from both tiers, leased or not`, async () => {
    const harness = await make({ memoryBlobs: 1, diskBlobs: 2 });
    await putAll(harness, [1, 2, 3]);
    harness.pool.lease(keyOf(1), 1000);
    harness.pool.release([keyOf(1), keyOf(3), keyOf(99)]);
    expect(held(harness, [1, 2, 3])).toEqual([2]);
    expect(await harness.pool.get(keyOf(1))).toBeNull();
    await harness.settled();
    expect(harness.pool.stats()).toMatchObject({
      memoryBytes: 0,
      diskBytes: BLOB_BYTES,
      evictions: 0,
    });
    await harness.pool.close();
  });

  test(`${name}: closed, it holds nothing, takes nothing, and can be closed again`, async () => {
    const harness = await make({ memoryBlobs: 1, diskBlobs: 4 });
    await putAll(harness, [1, 2]);
    const { pool } = harness;
    await pool.close();
    await pool.close();
    expect(pool.put(keyOf(3), blobOf(3))).toBe(false);
    expect(held(harness, [1, 2, 3])).toEqual([]);
    expect(await pool.get(keyOf(1))).toBeNull();
    expect(pool.lease(keyOf(1), 10)).toBe(false);
    pool.release([keyOf(1)]);
    expect(pool.stats()).toMatchObject({ memoryBytes: 0, diskBytes: 0 });
  });
}
