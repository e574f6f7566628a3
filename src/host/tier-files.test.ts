import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { mkdir, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { BLOB_BYTES, blobOf, isHeld, keyOf } from "../../test/suite/kv-blobs.ts";
import { EmbeddedKvPool } from "./embedded-pool.ts";
import { DirectoryTierFiles } from "./tier-files.ts";

const root = mkdtempSync(join(tmpdir(), "foretoken-tier-files-"));
const mounts: string[] = [];
afterAll(async () => {
  for (const directory of mounts) spawnSync("umount", ["-l", directory]);
  await rm(root, { recursive: true, force: true });
});

let parents = 0;
function newParent(): string {
  parents += 1;
  return join(root, `parent-${parents}`);
}

async function make(options: { parent?: string; memoryBytes: number; diskBytes: number }) {
  const parent = options.parent ?? newParent();
  const files = await DirectoryTierFiles.open(parent);
  const pool = new EmbeddedKvPool({
    memoryBytesMax: options.memoryBytes,
    disk: { files, bytesMax: options.diskBytes, pendingBytesMax: 64 * 1024 * 1024 },
  });
  return {
    pool,
    files,
    parent,
    fileOf: (token: number) => join(files.directory, `${keyOf(token)}.kv`),
  };
}

test("EmbeddedKvPool on a real disk: closed, it holds nothing, takes nothing, and can be closed again", async () => {
  const { pool } = await make({ memoryBytes: BLOB_BYTES, diskBytes: 4 * BLOB_BYTES });
  for (const token of [1, 2]) pool.put(keyOf(token), blobOf(token));
  await pool.settled();
  await pool.close();
  await pool.close();
  expect(pool.put(keyOf(3), blobOf(3))).toBe(false);
  for (const token of [1, 2, 3]) expect(await isHeld(pool, token)).toBe(false);
  expect(await pool.get(keyOf(1))).toBeNull();
  pool.release([keyOf(1)]);
  expect(pool.stats()).toMatchObject({ memoryBytes: 0, diskBytes: 0 });
});

/** Blob 1 in a file, blob 2 in memory. */
async function withBlobOnDisk() {
  const made = await make({ memoryBytes: BLOB_BYTES, diskBytes: 4 * BLOB_BYTES });
  made.pool.put(keyOf(1), blobOf(1));
  made.pool.put(keyOf(2), blobOf(2));
  await made.pool.settled();
  return { ...made, path: made.fileOf(1) };
}

test("DirectoryTierFiles: writes the blob as it is, for its owner only", async () => {
  const { pool, files, path } = await withBlobOnDisk();
  expect(new Uint8Array(await readFile(path))).toEqual(new Uint8Array(blobOf(1)));
  expect((await stat(path)).mode & 0o777).toBe(0o600);
  expect((await stat(files.directory)).mode & 0o777).toBe(0o700);
  await pool.close();
});

test("DirectoryTierFiles: close removes the pool's directory and nothing else", async () => {
  const { pool, parent } = await withBlobOnDisk();
  await writeFile(join(parent, "other"), "stays");
  await pool.close();
  expect(await readdir(parent)).toEqual(["other"]);
});

test("DirectoryTierFiles: a vanished file is a miss, a vanished directory heals", async () => {
  const { pool, files } = await withBlobOnDisk();
  await rm(files.directory, { recursive: true });
  expect(await pool.get(keyOf(1))).toBeNull();
  expect(pool.stats()).toMatchObject({ misses: 1, diskErrors: 1 });
  pool.put(keyOf(3), blobOf(3));
  await pool.settled();
  expect(await pool.get(keyOf(2))).toEqual(blobOf(2));
  expect(pool.stats()).toMatchObject({ diskErrors: 1, diskBytes: BLOB_BYTES });
  await pool.close();
});

test("DirectoryTierFiles: a directory that cannot be made is counted, not thrown", async () => {
  const parent = newParent();
  await writeFile(parent, "a file where the directory should be");
  const { pool } = await make({ parent, memoryBytes: BLOB_BYTES, diskBytes: 9 * BLOB_BYTES });
  for (const token of [1, 2, 3]) expect(pool.put(keyOf(token), blobOf(token))).toBe(true);
  await pool.settled();
  expect(await pool.get(keyOf(3))).toEqual(blobOf(3));
  expect(await pool.get(keyOf(1))).toBeNull();
  expect(pool.stats()).toMatchObject({ diskErrors: 2, evictions: 2, diskBytes: 0 });
  await pool.close();
});

test("DirectoryTierFiles: leftovers of dead processes go, those of living ones and others stay", async () => {
  const parent = newParent();
  const host = hostname().replaceAll(/[^A-Za-z0-9]/g, "_");
  const dead = spawnSync("true");
  const names = {
    dead: `foretoken-kv-${host}-${dead.pid}-0123456789ab`,
    earlierSelf: `foretoken-kv-${host}-${process.pid}-0123456789ab`,
    parentProcess: `foretoken-kv-${host}-${process.ppid}-0123456789ab`,
    otherHost: `foretoken-kv-elsewhere-${dead.pid}-0123456789ab`,
    unrelated: `notes-${dead.pid}-0123456789ab`,
  };
  for (const name of Object.values(names)) {
    await mkdir(join(parent, name, "0"), { recursive: true });
    await writeFile(join(parent, name, "0", "half.kv"), "half an object");
  }
  const first = await make({ parent, memoryBytes: BLOB_BYTES, diskBytes: 4 * BLOB_BYTES });
  first.pool.put(keyOf(1), blobOf(1));
  first.pool.put(keyOf(2), blobOf(2));
  await first.pool.settled();
  // A restart finds the files of the first pool, which lives, and must neither read nor remove them.
  const second = await make({ parent, memoryBytes: BLOB_BYTES, diskBytes: 4 * BLOB_BYTES });
  expect(await isHeld(second.pool, 1)).toBe(false);
  expect(await first.pool.get(keyOf(1))).toEqual(blobOf(1));
  expect((await readdir(parent)).sort()).toEqual(
    [
      names.parentProcess,
      names.otherHost,
      names.unrelated,
      first.files.directory.slice(parent.length + 1),
    ].sort(),
  );
  await first.pool.close();
  await second.pool.close();
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
  `DirectoryTierFiles: a full disk drops blobs and counts them${noMount === null ? "" : ` (skipped: ${noMount})`}`,
  async () => {
    const blobBytes = 256 * 1024;
    const { pool, files } = await make({
      parent: small,
      memoryBytes: blobBytes,
      diskBytes: 64 * blobBytes,
    });
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
    // What failed left nothing behind: every file there is a whole one.
    // One blob is in memory.
    expect(await readdir(files.directory)).toHaveLength(held.length - 1);
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
