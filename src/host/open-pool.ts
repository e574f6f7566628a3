// Opens the KV pool of a process, with its SSD tier in a directory of its own.

import { tmpdir } from "node:os";
import { EmbeddedKvPool } from "./embedded-pool.ts";
import { wallClock } from "./system.ts";
import { DirectoryTierFiles } from "./tier-files.ts";

/** DRAM for blobs on their way to the disk: some hundred milliseconds of writing. */
const PENDING_BYTES_MAX = 64 * 1024 * 1024;

export interface PoolOptions {
  readonly poolMemoryBytes: number;
  /** 0: no SSD tier. */
  readonly poolDiskBytes: number;
  /** Parent of the pool's own directory; null: the system's temporary one. */
  readonly poolDir: string | null;
}

/** The pool's directory is removed when it closes; that of a killed process, when the next pool opens beside it. */
export async function openPool(options: PoolOptions): Promise<EmbeddedKvPool> {
  const { poolMemoryBytes: memoryBytesMax, poolDiskBytes: bytesMax } = options;
  if (bytesMax === 0) return new EmbeddedKvPool({ clock: wallClock, memoryBytesMax, disk: null });
  const files = await DirectoryTierFiles.open(options.poolDir ?? tmpdir());
  const disk = { files, bytesMax, pendingBytesMax: PENDING_BYTES_MAX };
  return new EmbeddedKvPool({ clock: wallClock, memoryBytesMax, disk });
}
