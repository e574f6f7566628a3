// The wiring: the only place where the rollout, the embedded engines, the KV pool and the core meet.

import { tmpdir } from "node:os";
import type { Clock } from "./base/clock.ts";
import type { WeightEpoch } from "./base/ids.ts";
import type { BudgetName } from "./draft/budget.ts";
import type { DraftMode } from "./draft/registry.ts";
import { EmbeddedKvPool } from "./kv/embedded-pool.ts";
import type { Group, GroupSpec, Request } from "./request/buffer.ts";
import { Iteration } from "./rollout/iteration.ts";
import type { Progress, RunReport } from "./rollout/report.ts";
import type { Worker } from "./rollout/worker.ts";
import type { PolicyName } from "./schedule/policies.ts";
import { loadCore } from "./wasm/load.ts";
import type { LlamaModel } from "./worker/llama/open.ts";
import { DirectoryTierFiles } from "./worker/tier-files.ts";

export const wallClock: Clock = { nowMs: () => performance.now() };

export interface IterationOptions {
  readonly model: LlamaModel;
  /** Of the model's weights: stamped on every response. */
  readonly epoch: WeightEpoch;
  readonly groups: readonly GroupSpec[];
  readonly workers: number;
  readonly slots: number;
  readonly kvTokens: number;
  readonly chunkTokens: number;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  readonly draftBudget: BudgetName;
  readonly poolMemoryBytes: number;
  readonly poolDiskBytes: number;
  /** Parent of the pool's own directory, which is removed at the end; null: the system's temporary one. */
  readonly poolDir: string | null;
  readonly onGroup: (group: Group) => void;
  /** See IterationOptions. */
  readonly onFailed: (request: Request) => void;
  /** Called about `PROGRESS_HZ` times a second. */
  readonly onProgress: (progress: Progress) => void;
  /** Ends the run at once. */
  readonly signal: AbortSignal;
}

const PROGRESS_HZ = 5;

/** Runs one iteration on fresh embedded engines and frees them. */
export async function runIteration(options: IterationOptions): Promise<RunReport> {
  const { model, groups, epoch } = options;
  const contextTokens = Math.max(
    ...groups.map((group) => group.prompt.length + group.sampling.tokensMax),
  );
  const pool = await openPool(options);
  try {
    const workers = await model.openWorkers({
      workers: options.workers,
      slots: options.slots,
      kvTokens: options.kvTokens,
      contextTokens,
      epoch,
      draftBudget: options.draftBudget,
    });
    try {
      return await runOn(workers, pool, options);
    } finally {
      await Promise.all(workers.map((worker) => worker.close()));
    }
  } finally {
    await pool.close();
  }
}

async function runOn(
  workers: readonly Worker[],
  pool: EmbeddedKvPool,
  options: IterationOptions,
): Promise<RunReport> {
  const iteration = new Iteration({
    groups: options.groups,
    workers,
    policy: options.policy,
    draft: options.draft,
    chunkTokens: options.chunkTokens,
    epoch: options.epoch,
    deterministic: options.model.deterministic,
    pool,
    clock: wallClock,
    core: loadCore(),
    onGroup: options.onGroup,
    onFailed: options.onFailed,
  });
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
