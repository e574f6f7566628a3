// What a client's rollout took: a report about its own responses. Keys that RunReport has mean the same here;
// what belongs to workers is in /metrics, for other rollouts share them.

import type { Request } from "../../core/request/buffer.ts";
import type { Ends } from "../../core/rollout/iteration-span.ts";

export type RolloutReport = Readonly<ReturnType<typeof reportOf>>;

export function reportOf(facts: {
  requests: readonly Request[];
  groups: number;
  finishedGroups: number;
  startMs: number;
  endMs: number;
  /** Ends of the finished requests. */
  ends: Ends;
  restarts: number;
  interrupted: boolean;
}) {
  const { requests, startMs, endMs, ends } = facts;
  let [tokens, chunks, migrations] = [0, 0, 0];
  const epochs = new Set<number>();
  const reasons = { stop: 0, length: 0, abort: 0 };
  for (const { response } of requests) {
    tokens += response.length;
    chunks += response.chunks.length;
    for (const [i, chunk] of response.chunks.entries()) {
      if (chunk.tokens > 0) epochs.add(chunk.epoch);
      if (i > 0 && chunk.workerId !== response.chunks[i - 1]?.workerId) migrations += 1;
    }
    if (response.finish !== null) reasons[response.finish] += 1;
  }
  const weightEpochs = [...epochs].sort((a, b) => a - b);
  const wallS = (endMs - startMs) / 1000;
  const tailStartMs = ends.tailStartMs(requests.length, { startMs, endMs });
  return {
    /** Epoch of all tokens; null: responses are of several epochs, or there are no tokens. */
    weight_epoch: epochs.size === 1 ? (weightEpochs[0] ?? null) : null,
    weight_epochs: weightEpochs,
    groups: facts.groups,
    finished_groups: facts.finishedGroups,
    requests: requests.length,
    finished_requests: ends.count,
    /** From the request to the last response's end. */
    wall_s: wallS,
    output_tokens: tokens,
    output_tokens_per_s: wallS > 0 ? tokens / wallS : 0,
    /** Time spent only on the last 10 % of requests to finish (paper, Fig. 8). */
    tail_s: (endMs - tailStartMs) / 1000,
    chunks,
    /** Chunks that ran on another worker than the chunk before. */
    migrations,
    restarts: facts.restarts,
    finish_reasons: reasons,
    /** The rollout ended before all its responses did. */
    interrupted: facts.interrupted,
  };
}
