// The wiring: the only place where the rollout, the embedded engines, the KV pool and the core meet.

import { tmpdir } from "node:os";
import type { Clock } from "./core/base/clock.ts";
import type { WeightEpoch } from "./core/base/ids.ts";
import type { DraftMode } from "./core/draft/registry.ts";
import { EmbeddedKvPool } from "./core/kv/embedded-pool.ts";
import type { Group, GroupSpec, Request } from "./core/request/buffer.ts";
import { Iteration, type IterationJournal } from "./core/rollout/iteration.ts";
import type { Progress, RunReport } from "./core/rollout/report.ts";
import type { Worker } from "./core/rollout/worker.ts";
import type { PolicyName } from "./core/schedule/policies.ts";
import { loadCore } from "./core/wasm/load.ts";
import { DirectoryTierFiles } from "./host/tier-files.ts";

export const wallClock: Clock = { nowMs: () => performance.now() };

/** 32 bits of the system's chance. */
export function randomWord(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}

/**
 * Opens the workers of one iteration, which are closed at its end. `contextTokens`: prompt + output of its longest
 * request. `reach` is called whenever the connection to a worker is lost or back.
 */
export type OpenWorkers = (
  contextTokens: number,
  reach: (worker: Worker, isReachable: boolean) => void,
) => Promise<readonly Worker[]>;

export interface IterationOptions {
  readonly openWorkers: OpenWorkers;
  /** For the report. */
  readonly deterministic: boolean;
  /** Of the model's weights: stamped on every response. */
  readonly epoch: WeightEpoch;
  readonly groups: readonly GroupSpec[];
  /** null: chosen by what the end of a chunk costs. */
  readonly chunkTokens: number | null;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  readonly poolMemoryBytes: number;
  readonly poolDiskBytes: number;
  /** Parent of the pool's own directory, which is removed at the end; null: the system's temporary one. */
  readonly poolDir: string | null;
  readonly onGroup: (group: Group) => void;
  /** See IterationOptions. */
  readonly onFailed: (request: Request) => void;
  /** See IterationOptions. */
  readonly journal?: IterationJournal | null;
  /** Called about `PROGRESS_HZ` times a second. */
  readonly onProgress: (progress: Progress) => void;
  /** Ends the run at once. */
  readonly signal: AbortSignal;
}

const PROGRESS_HZ = 5;

/** Runs one iteration on fresh workers and closes them. */
export async function runIteration(options: IterationOptions): Promise<RunReport> {
  const contextTokens = Math.max(
    ...options.groups.map((group) => group.prompt.length + group.sampling.tokensMax),
  );
  const pool = await openPool(options);
  let iteration: Iteration | null = null;
  try {
    const workers = await options.openWorkers(contextTokens, (worker, isReachable) =>
      iteration?.setReachable(worker, isReachable),
    );
    try {
      iteration = iterationOn(workers, pool, options);
      return await watched(iteration, options);
    } finally {
      await Promise.all(workers.map((worker) => worker.close()));
    }
  } finally {
    await pool.close();
  }
}

function iterationOn(
  workers: readonly Worker[],
  pool: EmbeddedKvPool,
  options: IterationOptions,
): Iteration {
  return new Iteration({
    groups: options.groups,
    workers,
    policy: options.policy,
    draft: options.draft,
    chunkTokens: options.chunkTokens,
    epoch: options.epoch,
    deterministic: options.deterministic,
    pool,
    clock: wallClock,
    core: loadCore(),
    onGroup: options.onGroup,
    onFailed: options.onFailed,
    journal: options.journal ?? null,
  });
}

async function watched(iteration: Iteration, options: IterationOptions): Promise<RunReport> {
  const interrupt = () => iteration.interrupt();
  options.signal.addEventListener("abort", interrupt);
  const timer = setInterval(() => options.onProgress(iteration.progress()), 1000 / PROGRESS_HZ);
  try {
    const running = iteration.run();
    if (options.signal.aborted) interrupt();
    const report = await running;
    options.onProgress(iteration.progress());
    return report;
  } finally {
    clearInterval(timer);
    options.signal.removeEventListener("abort", interrupt);
  }
}

/** DRAM for blobs on their way to the disk: some hundred milliseconds of writing. */
const PENDING_BYTES_MAX = 64 * 1024 * 1024;

export interface PoolOptions {
  readonly poolMemoryBytes: number;
  /** 0: no SSD tier. */
  readonly poolDiskBytes: number;
  /** Parent of the pool's own directory; null: the system's temporary one. */
  readonly poolDir: string | null;
}

/** Its directory is removed at its end; that of a process which was killed, when the next pool opens beside it. */
export async function openPool(options: PoolOptions): Promise<EmbeddedKvPool> {
  const { poolMemoryBytes: memoryBytesMax, poolDiskBytes: bytesMax } = options;
  if (bytesMax === 0) return new EmbeddedKvPool({ clock: wallClock, memoryBytesMax, disk: null });
  const files = await DirectoryTierFiles.open(options.poolDir ?? tmpdir());
  const disk = { files, bytesMax, pendingBytesMax: PENDING_BYTES_MAX };
  return new EmbeddedKvPool({ clock: wallClock, memoryBytesMax, disk });
}
