// Figures of a worker and of a KV pool that have done nothing, to which a test adds its own.

import type { KvPoolStats } from "../../src/core/kv/pool.ts";
import type { WorkerStats } from "../../src/core/rollout/worker.ts";

export const NO_WORKER_STATS: WorkerStats = {
  ...{ running: 0, waiting: 0, kvTokensUsed: 0, steps: 0, busyMs: 0, draftMs: 0, outputTokens: 0 },
  ...{ prefillTokens: 0, recomputedTokens: 0, preemptions: 0, draftedTokens: 0, drafts: 0 },
  ...{ acceptedTokens: 0, kvLoads: 0, kvLoadFailures: 0 },
};

export const NO_POOL_STATS: KvPoolStats = {
  ...{ memoryBytes: 0, diskBytes: 0, puts: 0, hits: 0, misses: 0, corrupt: 0, evictions: 0 },
  diskErrors: 0,
};
