// The wiring: the only place where the rollout, the embedded engines, the KV pool and the core meet.

import { type IterationOptions as CoreOptions, Iteration } from "./core/rollout/iteration.ts";
import type { Progress, RunReport } from "./core/rollout/report.ts";
import type { Worker } from "./core/rollout/worker.ts";
import { loadCore } from "./core/wasm/load.ts";
import { openPool, type PoolOptions } from "./host/open-pool.ts";
import { wallClock } from "./host/system.ts";

/**
 * Opens the workers of one iteration, which are closed at its end. `contextTokens`: prompt + output of its longest
 * request. `reach` is called whenever the connection to a worker is lost or back.
 */
export type OpenWorkers = (
  contextTokens: number,
  reach: (worker: Worker, isReachable: boolean) => void,
) => Promise<readonly Worker[]>;

type Shared = Omit<CoreOptions, "workers" | "pool" | "clock" | "core">;

export interface IterationOptions extends Shared, PoolOptions {
  readonly openWorkers: OpenWorkers;
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
      iteration?.rollout.setReachable(worker, isReachable),
    );
    try {
      const { openWorkers: _open, onProgress: _progress, signal: _signal, ...rest } = options;
      iteration = new Iteration({ ...rest, workers, pool, clock: wallClock, core: loadCore() });
      return await watched(iteration, options);
    } finally {
      await Promise.all(workers.map((worker) => worker.close()));
    }
  } finally {
    await pool.close();
  }
}

async function watched(iteration: Iteration, options: IterationOptions): Promise<RunReport> {
  const interrupt = () => iteration.interrupt();
  const show = () => options.onProgress(iteration.rollout.meter.progress());
  options.signal.addEventListener("abort", interrupt);
  const timer = setInterval(show, 1000 / PROGRESS_HZ);
  try {
    const running = iteration.run();
    if (options.signal.aborted) interrupt();
    const report = await running;
    show();
    return report;
  } finally {
    clearInterval(timer);
    options.signal.removeEventListener("abort", interrupt);
  }
}
