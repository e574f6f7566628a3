// Figures of a worker, a plugin and a KV pool that have done nothing, to which a test adds its own.

import { weightEpoch } from "../../src/core/base/ids.ts";
import type { Telemetry } from "../../src/core/draft/service/message.ts";
import type { KvPoolStats } from "../../src/core/kv/pool.ts";
import type { WorkerStats } from "../../src/core/rollout/worker.ts";

export const NO_WORKER_STATS: WorkerStats = {
  ...{ running: 0, waiting: 0, kvTokensUsed: 0, steps: 0, busyMs: 0, draftMs: 0, outputTokens: 0 },
  ...{ prefillTokens: 0, recomputedTokens: 0, preemptions: 0, draftedTokens: 0, drafts: 0 },
  ...{ acceptedTokens: 0, kvLoads: 0, kvLoadFailures: 0 },
};

export const NO_TELEMETRY: Telemetry = {
  ...{ kind: "telemetry", epoch: weightEpoch(0), isLossless: true, kvUsage: null, waiting: null },
  ...{ running: 0, steps: 0, stepUs: 0, proposeUs: 0, drafted: 0, accepted: 0, faults: 0 },
  ...{ traced: 0, tracedElsewhere: 0, stepError: 0, repeatsSeeds: false },
};

export const NO_POOL_STATS: KvPoolStats = {
  ...{ memoryBytes: 0, diskBytes: 0, puts: 0, hits: 0, misses: 0, corrupt: 0, evictions: 0 },
  diskErrors: 0,
};
