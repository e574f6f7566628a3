// What a rollout says about itself: while it runs (Progress) and when it is over (RunReport).
// RunReport is written to disk as it stands: its keys are a public format and stay stable.

import type { KvMoveStats } from "./worker.ts";

/** One worker's share of a run. Times in seconds. */
export interface WorkerReport {
  readonly worker: number;
  /** Share of the wall time spent inside engine steps, 0..1. */
  readonly busy_share: number;
  /** Wall time between this worker's last token and the end of the run. */
  readonly idle_tail_s: number;
  readonly output_tokens: number;
  readonly prefill_tokens: number;
  readonly recomputed_tokens: number;
  readonly preemptions: number;
  readonly steps: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  /** Highest KV use seen, and the budget, in tokens. */
  readonly kv_tokens_peak: number;
  readonly kv_tokens: number;
  /** Time inside the drafter ÷ time inside engine steps. */
  readonly draft_share: number;
}

/** Of one engine, or of all together; the fields of KvMoveStats. */
export interface KvMovesReport {
  /** The engines' connectors, each once. */
  readonly connectors: readonly string[];
  readonly moves: number;
  readonly moved_tokens: number;
  readonly recomputed_moves: number;
  readonly recomputed_tokens: number;
  readonly hit_tokens: number;
  readonly failed_blocks: number;
  readonly pool_s: number;
}

/** null: no engine moves KV by a connector. */
export function kvMovesReport(all: readonly (KvMoveStats | undefined)[]): KvMovesReport | null {
  const there = all.filter((moves) => moves !== undefined);
  if (there.length === 0) return null;
  const sum = (value: (moves: KvMoveStats) => number): number =>
    there.reduce((total, moves) => total + value(moves), 0);
  return {
    connectors: [...new Set(there.map(({ connector }) => connector))],
    moves: sum((m) => m.moves),
    moved_tokens: sum((m) => m.movedTokens),
    recomputed_moves: sum((m) => m.recomputedMoves),
    recomputed_tokens: sum((m) => m.recomputedTokens),
    hit_tokens: sum((m) => m.hitTokens),
    failed_blocks: sum((m) => m.failedBlocks),
    pool_s: sum((m) => m.poolSeconds),
  };
}

export interface RunReport {
  readonly policy: string;
  readonly draft: string;
  readonly deterministic: boolean;
  readonly weight_epoch: number;
  readonly groups: number;
  readonly requests: number;
  readonly finished_requests: number;
  /** Of them, those that ended with an error: no engine would, or could, run them. */
  readonly failed_requests: number;
  /** Dispatch of the first request to the end of the last one. Model loading and profiling are not in it. */
  readonly wall_s: number;
  readonly output_tokens: number;
  readonly output_tokens_per_s: number;
  /** Time spent only on the last 10 % of requests to finish (paper, Fig. 8). */
  readonly tail_s: number;
  readonly preemptions: number;
  readonly recomputed_tokens: number;
  readonly chunks: number;
  /** Of `chunks`: those that were ended early because their worker was short of KV. */
  readonly chunks_ended_early: number;
  /** Chunks that ran on another worker than the chunk before. */
  readonly migrations: number;
  readonly migrated_bytes: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  /** 1 + accepted ÷ drafts; 1 where nothing was drafted. */
  readonly mean_acceptance_length: number;
  /** Output tokens per request and engine step over the whole run. */
  readonly tokens_per_step: number;
  /** Tokens expected by offset that never came, and tokens that came twice. Both are 0 in a right run. */
  readonly lost_tokens: number;
  readonly duplicated_tokens: number;
  /** Tokens of requests that had been given up, refused; and tokens taken back from undivided requests. */
  readonly late_tokens: number;
  readonly restarted_tokens: number;
  readonly kv_pool: {
    readonly memory_bytes_peak: number;
    readonly disk_bytes_peak: number;
    readonly hits: number;
    readonly misses: number;
    readonly corrupt: number;
    readonly evictions: number;
    readonly disk_errors: number;
  };
  /** By engines' own KV connectors; null: none has one. See KvMoveStats. */
  readonly kv_moves: KvMovesReport | null;
  readonly workers: readonly WorkerReport[];
  /** true: stopped by a signal before the end. */
  readonly interrupted: boolean;
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
  /** Over the last second or so. */
  readonly tokensPerS: number;
  readonly running: number;
  readonly waiting: number;
  readonly migrations: number;
  readonly preemptions: number;
  /** 1 where nothing was drafted yet. */
  readonly meanAcceptanceLength: number;
  /** null until there is something to go by. */
  readonly etaS: number | null;
  /** The end is expected between these: in four samples of five after a fifth of the time. null as etaS. */
  readonly etaLowS: number | null;
  readonly etaHighS: number | null;
  readonly workers: readonly {
    readonly worker: number;
    readonly running: number;
    /** In the queue of the engine itself. */
    readonly waiting: number;
    readonly slots: number;
    readonly kvTokensUsed: number;
    readonly kvTokens: number;
  }[];
}
