// The rollout's progress, as sent over the wire.

import type { Rollout } from "../../core/rollout/rollout.ts";
import type { ProgressEntry } from "./frame.ts";

export function progressEntry(rollout: Rollout): ProgressEntry {
  const progress = rollout.meter.progress();
  return {
    iteration: progress.iteration,
    is_tail: progress.isTail,
    elapsed_s: progress.elapsedS,
    groups_done: progress.groupsDone,
    groups: progress.groups,
    requests_done: progress.requestsDone,
    requests: progress.requests,
    output_tokens: progress.outputTokens,
    tokens_per_s: progress.tokensPerS,
    running: progress.running,
    waiting: progress.waiting,
    migrations: progress.migrations,
    preemptions: progress.preemptions,
    mean_acceptance_length: progress.meanAcceptanceLength,
    eta_s: progress.etaS,
    eta_low_s: progress.etaLowS,
    eta_high_s: progress.etaHighS,
    weight_epoch: rollout.epoch,
    workers: progress.workers.map((worker) => ({
      worker: worker.worker,
      running: worker.running,
      slots: worker.slots,
      kv_tokens_used: worker.kvTokensUsed,
      kv_tokens: worker.kvTokens,
    })),
  };
}
