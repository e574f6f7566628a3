import { expect, test } from "bun:test";
import { failure, MemoryFiles } from "../../test/reference/memory-files.ts";
import { BLOB_BYTES, blobOf, isHeld, keyOf } from "../../test/suite/kv-blobs.ts";
import { EmbeddedKvPool } from "./embedded-pool.ts";

function make(options: { memoryBlobs: number; diskBlobs: number; pendingBlobs?: number }) {
  const files = new MemoryFiles();
  const pool = new EmbeddedKvPool({
    memoryBytesMax: options.memoryBlobs * BLOB_BYTES,
    disk: {
      files,
      bytesMax: options.diskBlobs * BLOB_BYTES,
      pendingBytesMax: (options.pendingBlobs ?? 4) * BLOB_BYTES,
    },
  });
  return { pool, files, settled: () => pool.settled() };
}

/** A pool with blob 2 in memory and blob 1 on the disk. */
async function withBlobOnDisk() {
  const made = make({ memoryBlobs: 1, diskBlobs: 4 });
  made.pool.put(keyOf(1), blobOf(1));
  made.pool.put(keyOf(2), blobOf(2));
  await made.settled();
  const path = `${keyOf(1)}.kv`;
  expect([...made.files.files.keys()]).toEqual([path]);
  return { ...made, path };
}

test("EmbeddedKvPool: any flipped bit of a file is found, and the blob dropped", async () => {
  for (const at of [0, 1, 499, BLOB_BYTES - 1]) {
    const { pool, files, path } = await withBlobOnDisk();
    const file = files.files.get(path) ?? new Uint8Array(0);
    file[at] = (file[at] ?? 0) ^ 16;
    expect(await pool.get(keyOf(1))).toBeNull();
    await pool.settled();
    expect(files.files.size).toBe(0);
    expect(pool.stats()).toMatchObject({ corrupt: 1, misses: 1, hits: 0, diskBytes: 0 });
    expect(await isHeld(pool, 1)).toBe(false);
  }
});

test("EmbeddedKvPool: a file cut at any length is found, and the blob dropped", async () => {
  for (const length of [0, 1, 16, 500, BLOB_BYTES - 1]) {
    const { pool, files, path } = await withBlobOnDisk();
    files.files.set(path, new Uint8Array(blobOf(1)).slice(0, length));
    expect(await pool.get(keyOf(1))).toBeNull();
    expect(pool.stats()).toMatchObject({ corrupt: 1, misses: 1, diskBytes: 0 });
  }
});

test("EmbeddedKvPool: when a write fails the blob is dropped and no file is left", async () => {
  const { pool, files } = make({ memoryBlobs: 1, diskBlobs: 4 });
  files.before = async (current) => {
    if (current === "write") throw failure("ENOSPC");
  };
  expect(pool.put(keyOf(1), blobOf(1))).toBe(true);
  expect(pool.put(keyOf(2), blobOf(2))).toBe(true);
  await pool.settled();
  expect(await isHeld(pool, 1)).toBe(false);
  expect(files.files.size).toBe(0);
  expect(pool.stats()).toMatchObject({
    diskErrors: 1,
    evictions: 1,
    diskBytes: 0,
    memoryBytes: BLOB_BYTES,
  });
  // The disk has room again: so has the pool.
  files.before = async () => undefined;
  pool.put(keyOf(3), blobOf(3));
  await pool.settled();
  expect(await pool.get(keyOf(2))).toEqual(blobOf(2));
});

test("EmbeddedKvPool: what waits for the disk is bounded, the rest is dropped", async () => {
  const { pool } = make({ memoryBlobs: 1, diskBlobs: 9, pendingBlobs: 2 });
  for (let token = 0; token < 5; token += 1) pool.put(keyOf(token), blobOf(token));
  // 0 and 1 wait for the disk, 2 and 3 found the queue full, 4 is in memory.
  expect(pool.stats()).toMatchObject({ memoryBytes: 3 * BLOB_BYTES, evictions: 2 });
  await pool.settled();
  const held = [0, 1, 2, 3, 4].map((token) => isHeld(pool, token));
  expect(await Promise.all(held)).toEqual([true, true, false, false, true]);
  expect(pool.stats()).toMatchObject({ memoryBytes: BLOB_BYTES });
});
