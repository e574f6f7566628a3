// The reports of a rollout when it is over: of its responses (RolloutReport), and with what its engines did (RunReport).
// They are written as they stand: their keys are a public format and stay stable.

import type { RolloutRequest } from "../request/buffer.ts";
import type { Ends } from "./iteration-span.ts";
import type { EnginesReport } from "./meter.ts";
import { lengthBias } from "./selection.ts";

export type RolloutReport = Readonly<ReturnType<typeof rolloutReport>>;

/** Report of a rollout that had the engines to itself. Keys that both parts have are the engines'. */
export interface RunReport extends Omit<RolloutReport, keyof EnginesReport>, EnginesReport {
  readonly policy: string;
  readonly draft: string;
  readonly deterministic: boolean;
}

export interface RolloutOutcome {
  readonly groups: readonly { readonly requests: readonly RolloutRequest[] }[];
  /** Groups that were handed out, with these responses. */
  readonly finishedGroups: readonly { readonly taken: readonly RolloutRequest[] }[];
  readonly startMs: number;
  readonly endMs: number;
  readonly ends: Ends;
  readonly restarts: number;
  readonly carriedGroups: number;
  /** Changes by its client while it ran. */
  readonly changed: Readonly<Record<"added_groups" | "added_requests" | "given_up_groups", number>>;
  readonly isWhole: boolean;
}

/** Report of a rollout's responses alone: other rollouts may share its engines. */
export function rolloutReport(outcome: RolloutOutcome) {
  const { groups, finishedGroups, startMs, endMs, ends, restarts } = outcome;
  const requests = groups.flatMap((group) => group.requests);
  let tokens = 0;
  let chunks = 0;
  let migrations = 0;
  const taken = new Set(finishedGroups.flatMap((group) => group.taken));
  const others = requests.filter((request) => !taken.has(request));
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
    groups: groups.length,
    finished_groups: finishedGroups.length,
    requests: requests.length,
    finished_requests: ends.count,
    /** From the request to the last response's end. Model loading and profiling are not in it. */
    wall_s: wallS,
    output_tokens: tokens,
    output_tokens_per_s: wallS > 0 ? tokens / wallS : 0,
    /** Time spent only on the last 10 % of requests to finish (paper, Fig. 8). */
    tail_s: (endMs - tailStartMs) / 1000,
    chunks,
    /** Chunks that ran on another worker than the chunk before. */
    migrations,
    restarts,
    finish_reasons: reasons,
    /** Responses that were handed out, and by how much they are longer than all: see `lengthBias`. */
    returned_requests: taken.size,
    length_bias: lengthBias([...taken], others),
    /** Groups that a rollout with `carry_from` goes on with. */
    carried_groups: outcome.carriedGroups,
    /** Groups and responses that the client added, and groups that it gave up. */
    ...outcome.changed,
    interrupted: !outcome.isWhole,
  };
}

/** `foretoken rollout --compare` and `--report` write this. `run` order is the order they ran in. */
export interface ReportFile {
  readonly command: string;
  readonly model: string;
  readonly seed: number;
  readonly host: { readonly cpu: string; readonly cores: number; readonly bun: string };
  readonly runs: Readonly<Record<string, RunReport>>;
}
