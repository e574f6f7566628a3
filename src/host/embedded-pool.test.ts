import { expect, test } from "bun:test";
import { MemoryFile } from "../../test/reference/memory-file.ts";
import { BLOB_BYTES, blobOf, isHeld, keyOf } from "../../test/suite/kv-blobs.ts";
import { EmbeddedKvPool } from "./embedded-pool.ts";

function make(options: { memoryBlobs: number; diskBlobs: number; pendingBlobs?: number }) {
  const file = new MemoryFile();
  const pool = new EmbeddedKvPool({
    memoryBytesMax: options.memoryBlobs * BLOB_BYTES,
    disk: {
      file,
      bytesMax: options.diskBlobs * BLOB_BYTES,
      pendingBytesMax: (options.pendingBlobs ?? 4) * BLOB_BYTES,
    },
  });
  return { pool, file };
}

test("EmbeddedKvPool: any flipped bit on the disk is found, and the blob dropped", async () => {
  for (const at of [0, 1, 499, BLOB_BYTES - 1]) {
    const { pool, file } = make({ memoryBlobs: 1, diskBlobs: 4 });
    pool.put(keyOf(1), blobOf(1));
    pool.put(keyOf(2), blobOf(2));
    await pool.settled();
    expect(file.bytes.buffer).toEqual(blobOf(1));
    file.bytes[at] = (file.bytes[at] ?? 0) ^ 16;
    expect(await pool.get(keyOf(1))).toBeNull();
    expect(pool.stats()).toMatchObject({ corrupt: 1, misses: 1, hits: 0, diskBytes: 0 });
    expect(await isHeld(pool, 1)).toBe(false);
  }
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
