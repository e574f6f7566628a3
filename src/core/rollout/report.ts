// The reports of a rollout: while it runs (Progress) and when it is over (RunReport).
// RunReport is written to disk as it stands: its keys are a public format and stay stable.

import {
  type Figures,
  KV_MOVE_FIGURES,
  type KvMoveKey,
  type PoolKey,
  sumsOf,
  type WorkerKey,
} from "./figures.ts";
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

/** Report of a run: the figures of the table, and values derived from them. */
export interface RunReport extends Readonly<Figures> {
  readonly policy: string;
  readonly draft: string;
  readonly deterministic: boolean;
  readonly weight_epoch: number;
  /** Dispatch of the first request to the end of the last one. Model loading and profiling are not in it. */
  readonly wall_s: number;
  readonly output_tokens_per_s: number;
  /** Time spent only on the last 10 % of requests to finish (paper, Fig. 8). */
  readonly tail_s: number;
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
  /** true: stopped by a signal before the end. */
  readonly interrupted: boolean;
  /** Places and times of all chunks: `foretoken trace` draws it. */
  readonly timeline: Timeline;
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
