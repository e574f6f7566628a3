// The reports of a rollout: while it runs (Progress), when it is over (RolloutReport), and with what its engines did
// (RunReport). The last two are written as they stand: their keys are a public format and stay stable.

import type { RolloutRequest } from "../request/buffer.ts";
import {
  type Figures,
  KV_MOVE_FIGURES,
  type KvMoveKey,
  type PoolKey,
  sumsOf,
  type WorkerKey,
} from "./figures.ts";
import type { Ends } from "./iteration-span.ts";
import { lengthBias } from "./selection.ts";
import type { Timeline } from "./timeline.ts";
import type { KvMoveStats } from "./worker.ts";

/** One worker's share of a run; the figures of the table, and: */
export interface WorkerReport extends Readonly<Record<WorkerKey, number>> {
  readonly worker: number;
  /** Share of the wall time spent inside engine steps, 0..1. */
  readonly busy_share: number;
  /** Wall time between this worker's last token and the end of the run. */
  readonly idle_tail_s: number;
  readonly output_tokens: number;
  /** Highest KV use seen, and the budget, in tokens. */
  readonly kv_tokens_peak: number;
  readonly kv_tokens: number;
  /** Time inside the drafter ÷ time inside engine steps. */
  readonly draft_share: number;
}

/** KV moves of one engine, or of all together. */
export interface KvMovesReport extends Readonly<Record<KvMoveKey, number>> {
  /** The engines' connectors, each once. */
  readonly connectors: readonly string[];
}

/** null: no engine moves KV by a connector. */
export function kvMovesReport(all: readonly (KvMoveStats | undefined)[]): KvMovesReport | null {
  const there = all.filter((moves) => moves !== undefined);
  if (there.length === 0) return null;
  const connectors = [...new Set(there.map(({ connector }) => connector))];
  return { connectors, ...sumsOf(KV_MOVE_FIGURES, there) };
}

/** Report of the engines: the figures of the table, and values derived from them. */
export interface EnginesReport extends Readonly<Figures> {
  /** 1 + accepted ÷ drafts; 1 where nothing was drafted. */
  readonly mean_acceptance_length: number;
  /** Output tokens per request and engine step over the whole run. */
  readonly tokens_per_step: number;
  readonly kv_pool: Readonly<Record<PoolKey, number>> & {
    readonly memory_bytes_peak: number;
    readonly disk_bytes_peak: number;
  };
  /** Moves by the engines' own KV connectors; null: no engine has one. */
  readonly kv_moves: KvMovesReport | null;
  readonly workers: readonly WorkerReport[];
  /** Places and times of all chunks: `foretoken trace` draws it. */
  readonly timeline: Timeline;
}

export type RolloutReport = Readonly<ReturnType<typeof rolloutReport>>;

/** Report of a rollout that had the engines to itself. Keys that both parts have are the engines'. */
export interface RunReport extends Omit<RolloutReport, keyof EnginesReport>, EnginesReport {
  readonly policy: string;
  readonly draft: string;
  readonly deterministic: boolean;
}

/** Responses of a rollout, and what became of them. */
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
  const reasons = { stop: 0, length: 0, abort: 0, deadline: 0 };
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
    /** The rollout ended before all its responses did. */
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

/** An iteration as it stands; made on demand, some times a second. A sidecar's counts are those of its current iteration. */
export interface Progress {
  /** Number of the iteration; the first is 1. 0: none has begun. */
  readonly iteration: number;
  /** Unfinished requests are at most a tenth of the iteration's. */
  readonly isTail: boolean;
  readonly elapsedS: number;
  readonly groupsDone: number;
  readonly groups: number;
  readonly requestsDone: number;
  readonly requests: number;
  readonly outputTokens: number;
  /** Rate over about the last second. */
  readonly tokensPerS: number;
  readonly running: number;
  readonly waiting: number;
  readonly migrations: number;
  readonly preemptions: number;
  /** 1 where nothing was drafted yet. */
  readonly meanAcceptanceLength: number;
  /** null until there is something to go by. */
  readonly etaS: number | null;
  /** Bounds of the likely time left; see `time-left.ts`. null as etaS. */
  readonly etaLowS: number | null;
  readonly etaHighS: number | null;
  readonly workers: readonly {
    readonly worker: number;
    readonly running: number;
    /** Requests in the engine's own queue. */
    readonly waiting: number;
    readonly slots: number;
    readonly kvTokensUsed: number;
    readonly kvTokens: number;
  }[];
}
