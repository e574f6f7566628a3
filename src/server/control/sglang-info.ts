// What SGLang's engines tell of themselves, as slime and miles ask it of an external engine: this server stands for all of
// its engines as one, with the ranks of all.

import { connected, type WorkerPool } from "../../pool/pool.ts";
import type { Sidecar } from "../sidecar.ts";
import type { WeightUpdates } from "./weights.ts";

interface Parts {
  readonly sidecar: Sidecar;
  readonly pool: WorkerPool;
  readonly weights: WeightUpdates;
  readonly modelName: string;
  readonly version: string;
}

/** slime compares these with what it would start the engine with (`_init_external`). */
export function serverInfo(parts: Parts, about: { url: URL; worldSize: number }): object {
  const { url, worldSize } = about;
  const workers = connected(parts.pool.members).map(({ worker }) => worker.capacity);
  const sum = (of: (capacity: (typeof workers)[number]) => number) =>
    workers.reduce((total, capacity) => total + of(capacity), 0);
  return {
    ...modelInfo(parts),
    host: url.hostname,
    port: Number(url.port === "" ? 80 : url.port),
    tp_size: worldSize,
    dp_size: 1,
    pp_size: 1,
    ep_size: 1,
    nnodes: 1,
    node_rank: 0,
    base_gpu_id: 0,
    gpu_id_step: 1,
    enable_memory_saver: false,
    enable_return_routed_experts: parts.sidecar.reportsExperts,
    max_running_requests: sum(({ slots }) => slots),
    max_total_num_tokens: sum(({ kvTokens }) => kvTokens),
    version: parts.version,
  };
}

export function modelInfo({ sidecar, weights, modelName }: Parts): object {
  const { contextTokens } = sidecar;
  return {
    model_path: modelName,
    served_model_name: modelName,
    tokenizer_path: modelName,
    is_generation: true,
    weight_version: weights.current,
    context_length: Number.isFinite(contextTokens) ? contextTokens : null,
  };
}

/** One rank: what runs anywhere, and what waits here or in an engine. */
export function loads({ sidecar, pool }: Parts): object[] {
  const { meter } = sidecar.rollout;
  let [running, tokens] = [0, 0];
  for (const { workerId } of pool.members) {
    const stats = meter.latest(workerId);
    running += stats?.running ?? 0;
    tokens += stats?.kvTokensUsed ?? 0;
  }
  const { unfinished } = sidecar.rollout;
  const waiting = Math.max(0, unfinished - running);
  return [
    {
      dp_rank: 0,
      num_reqs: unfinished,
      num_running_reqs: running,
      num_waiting_reqs: waiting,
      num_total_reqs: unfinished,
      num_tokens: tokens,
    },
  ];
}
