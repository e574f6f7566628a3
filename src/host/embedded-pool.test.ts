import { expect, test } from "bun:test";
import { MemoryFiles } from "../../test/reference/memory-files.ts";
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

test("EmbeddedKvPool: any flipped bit of a file, and a file cut at any length, is found, and the blob dropped", async () => {
  const whole = new Uint8Array(blobOf(1));
  const flipped = [0, 1, 499, BLOB_BYTES - 1].map((at) =>
    whole.map((byte, i) => (i === at ? byte ^ 16 : byte)),
  );
  const cut = [0, 1, 16, 500, BLOB_BYTES - 1].map((length) => whole.slice(0, length));
  for (const bytes of [...flipped, ...cut]) {
    const { pool, files, path } = await withBlobOnDisk();
    files.files.set(path, bytes);
    expect(await pool.get(keyOf(1))).toBeNull();
    await pool.settled();
    expect(files.files.size).toBe(0);
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
