import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { mkdir, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BLOB_BYTES, blobOf, isHeld, keyOf } from "../../test/suite/kv-blobs.ts";
import { EmbeddedKvPool } from "./embedded-pool.ts";
import { UnlinkedFile } from "./tier-file.ts";

const root = mkdtempSync(join(tmpdir(), "foretoken-tier-file-"));
const mounts: string[] = [];
afterAll(async () => {
  for (const directory of mounts) spawnSync("umount", ["-l", directory]);
  await rm(root, { recursive: true, force: true });
});

function make({
  folder,
  memoryBytes = BLOB_BYTES,
  diskBytes = 4 * BLOB_BYTES,
}: {
  folder: string;
  memoryBytes?: number;
  diskBytes?: number;
}) {
  const disk = {
    file: new UnlinkedFile(folder),
    bytesMax: diskBytes,
    pendingBytesMax: 64 * 1024 * 1024,
  };
  return new EmbeddedKvPool({ memoryBytesMax: memoryBytes, disk });
}

test("EmbeddedKvPool on a real disk: nobody sees its file, and closed it holds and takes nothing", async () => {
  const folder = join(root, "of", "its", "own");
  const pool = make({ folder });
  for (const token of [1, 2, 3]) pool.put(keyOf(token), blobOf(token));
  await pool.settled();
  for (const token of [1, 2, 3]) expect(await pool.get(keyOf(token))).toEqual(blobOf(token));
  expect(pool.stats()).toMatchObject({ memoryBytes: BLOB_BYTES, diskBytes: 2 * BLOB_BYTES });
  expect(await readdir(folder)).toEqual([]);
  await pool.close();
  await pool.close();
  expect(pool.put(keyOf(4), blobOf(4))).toBe(false);
  for (const token of [1, 2, 3, 4]) expect(await isHeld(pool, token)).toBe(false);
  pool.release([keyOf(1)]);
  expect(pool.stats()).toMatchObject({ memoryBytes: 0, diskBytes: 0 });
});

test("EmbeddedKvPool on a real disk: a folder that cannot be made is counted, and used once it can", async () => {
  const folder = join(root, "taken");
  await writeFile(folder, "a file where the directory should be");
  const pool = make({ folder });
  for (const token of [1, 2, 3]) expect(pool.put(keyOf(token), blobOf(token))).toBe(true);
  await pool.settled();
  expect(await pool.get(keyOf(3))).toEqual(blobOf(3));
  expect(await pool.get(keyOf(1))).toBeNull();
  expect(pool.stats()).toMatchObject({ diskErrors: 2, evictions: 2, diskBytes: 0 });
  await rm(folder);
  pool.put(keyOf(4), blobOf(4));
  await pool.settled();
  expect(await pool.get(keyOf(3))).toEqual(blobOf(3));
  await pool.close();
});

/** Mounts an own little file system at a new directory of this name; says why where that is impossible. */
async function mountSmall(name: string, options: string): Promise<string | null> {
  if (process.platform !== "linux") return "needs Linux";
  if (process.getuid?.() !== 0) return "needs root to mount a file system";
  const directory = join(root, name);
  await mkdir(directory);
  const mounted = spawnSync("mount", ["-t", "tmpfs", "-o", options, "tmpfs", directory]);
  if (mounted.status !== 0) return "mounting a tmpfs is not permitted here";
  mounts.push(directory);
  return null;
}

const small = join(root, "small");
const noMount = await mountSmall("small", `size=${1024 * 1024}`);

test.skipIf(noMount !== null)(
  `EmbeddedKvPool on a real disk: a full disk drops blobs and counts them${noMount === null ? "" : ` (skipped: ${noMount})`}`,
  async () => {
    const blobBytes = 256 * 1024;
    const pool = make({ folder: small, memoryBytes: blobBytes, diskBytes: 64 * blobBytes });
    const tokens = [1, 2, 3, 4, 5, 6, 7, 8];
    for (const token of tokens) expect(pool.put(keyOf(token), blobOf(token, blobBytes))).toBe(true);
    await pool.settled();
    const { diskErrors, evictions } = pool.stats();
    expect(diskErrors).toBeGreaterThan(0);
    const held: number[] = [];
    for (const token of tokens) if (await isHeld(pool, token)) held.push(token);
    expect(held.length).toBe(tokens.length - evictions);
    expect(held.length).toBeGreaterThanOrEqual(3);
    for (const token of held)
      expect(await pool.get(keyOf(token))).toEqual(blobOf(token, blobBytes));
    // Room is made, and the tier works again.
    pool.release(held.map((token) => keyOf(token)));
    await pool.settled();
    pool.put(keyOf(20), blobOf(20, blobBytes));
    pool.put(keyOf(21), blobOf(21, blobBytes));
    await pool.settled();
    expect(await pool.get(keyOf(20))).toEqual(blobOf(20, blobBytes));
    await pool.close();
    expect(await readdir(small)).toEqual([]);
  },
);
