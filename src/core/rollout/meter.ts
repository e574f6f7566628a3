// Counts what happens in a run and renders it as Progress and EnginesReport. It changes nothing. The keys of EnginesReport
// are a public format and stay stable.

import type { Clock } from "../base/clock.ts";
import type { WeightEpoch, WorkerId } from "../base/ids.ts";
import type { KvPoolStats } from "../kv/pool.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import {
  type CountKey,
  type Counts,
  type Figures,
  KV_MOVE_FIGURES,
  POOL_FIGURES,
  ROLLOUT_FIGURES,
  sumsOf,
  WORKER_FIGURES,
  type WorkerKey,
} from "./figures.ts";
import { Ends, IterationSpan, type IterationSummary } from "./iteration-span.ts";
import { Ledger } from "./ledger.ts";
import { type EngineClock, engineClock } from "./progress-clock.ts";
import { ETA_FACTOR, TimeLeft } from "./time-left.ts";
import { type Timeline, TimelineRecorder } from "./timeline.ts";
import type { EngineWorker, KvMoveStats, WorkerStats } from "./worker.ts";

/** tokens/s is shown over about this long. */
const RATE_WINDOW_MS = 1000;
/** Interval between two estimates of the end: at least, and for each open request. */
const ETA_MS = 1000;
const ETA_REQUEST_MS = 1 / 16;

/** An iteration as it stands; made on demand, some times a second. A sidecar's counts are those of its current iteration. */
export type Progress = Readonly<ReturnType<Meter["progress"]>>;
/** Report of the engines: the figures of the table, and values derived from them. */
export type EnginesReport = Readonly<ReturnType<Meter["report"]>>;
export type WorkerReport = Readonly<ReturnType<typeof workerReport>>;

interface WorkerTally {
  readonly worker: EngineWorker;
  stats: WorkerStats | null;
  outputTokens: number;
  kvTokensPeak: number;
  lastTokenMs: number;
  /** Time of its last token, or report of work; 0: none. */
  progressMs: number;
}

export class Meter {
  readonly #clock: Clock;
  readonly #tallies = new Map<WorkerId, WorkerTally>();
  readonly #counts: Counts = sumsOf(ROLLOUT_FIGURES, []);
  /** Sums over workers that were removed. */
  #forgotten: Readonly<Record<WorkerKey, number>> = sumsOf(WORKER_FIGURES, []);
  #turnMs = 0;
  readonly #startMs: number;
  #rateStartMs: number;
  #rateStartTokens = 0;
  #tokensPerS = 0;
  readonly #open: () => Iterable<RolloutRequest>;
  readonly #learned: (group: Group) => number | null;
  /** The current iteration, or the last one; null: none has begun. */
  #span: IterationSpan | null = null;
  #isOver = true;
  readonly #timeline = new TimelineRecorder();
  /** The last estimate, as times of the clock. */
  #ends: { readonly atMs: number; readonly leftS: number | null } | null = null;
  readonly #timeLeft = new TimeLeft();
  readonly #load: Pick<Ledger, "paces" | "running">;
  #poolMemoryPeak = 0;
  #poolDiskPeak = 0;

  /** `requests`: those of all open groups, finished or not. `learned`: their L_g, if known. `load`: what workers run. */
  constructor(
    clock: Clock,
    requests: () => Iterable<RolloutRequest> = () => [],
    learned: (group: Group) => number | null = () => null,
    load: Pick<Ledger, "paces" | "running"> = new Ledger(clock),
  ) {
    this.#clock = clock;
    this.#open = requests;
    this.#learned = learned;
    this.#load = load;
    this.#startMs = clock.nowMs();
    this.#rateStartMs = this.#startMs;
  }

  worker(worker: EngineWorker): void {
    this.#tallies.set(worker.workerId, {
      worker,
      stats: null,
      outputTokens: 0,
      kvTokensPeak: 0,
      lastTokenMs: 0,
      progressMs: 0,
    });
  }

  /** Sets the worker's levels to zero, whatever its last report was. */
  workerGone(workerId: WorkerId): void {
    const tally = this.#tallies.get(workerId);
    if (tally?.stats == null) return;
    tally.stats = { ...tally.stats, running: 0, waiting: 0, kvTokensUsed: 0 };
  }

  hasDrafted({ workerId }: EngineWorker): boolean {
    return (this.#tallies.get(workerId)?.stats?.draftedTokens ?? 0) > 0;
  }

  /** The worker does not come back: its counts stay in the sums, and nothing else is kept. */
  workerForgotten(workerId: WorkerId): void {
    const stats = this.#tallies.get(workerId)?.stats ?? null;
    this.#tallies.delete(workerId);
    this.#timeline.forget(workerId);
    if (stats === null) return;
    this.#forgotten = this.#sums([stats]);
  }

  /** Number of the current iteration, or of the last one; 0: none has begun. */
  get iteration(): number {
    return this.#span?.number ?? 0;
  }

  /** The next request begins another iteration. null: none was open. */
  endIteration(): IterationSummary | null {
    if (this.#isOver || this.#span === null) return null;
    this.#isOver = true;
    return this.#span.summary(this.#counted(), this.#clock.nowMs());
  }

  #begin(epoch: WeightEpoch): void {
    const begin = { number: this.iteration + 1, epoch, startMs: this.#clock.nowMs() };
    this.#span = new IterationSpan({ ...begin, counted: this.#counted() });
    this.#isOver = false;
    this.#timeline.clear();
    this.#ends = null;
    this.#timeLeft.clear();
  }

  requestJoined({ group, spec }: RolloutRequest, epoch: WeightEpoch): void {
    if (this.#isOver) this.#begin(epoch);
    // A group that had ended goes on: in another iteration it is one of that, too.
    if (group.endedIn === this.iteration) this.#counts.finished_groups -= 1;
    else if (spec.sampleIndex === 0 || group.endedIn !== null) this.#counts.groups += 1;
    group.endedIn = null;
    this.#counts.requests += 1;
  }

  /** The next events happen now: the clock is read once for all events of a message. */
  turn(): void {
    this.#turnMs = this.#clock.nowMs();
  }

  /** When the messages that are being handled came. */
  get turnMs(): number {
    return this.#turnMs;
  }

  tokens(workerId: WorkerId, fresh: number): void {
    this.#counts.output_tokens += fresh;
    const tally = this.#tallies.get(workerId);
    if (tally === undefined) return;
    tally.outputTokens += fresh;
    tally.lastTokenMs = this.#turnMs;
    tally.progressMs = this.#turnMs;
  }

  count(key: CountKey, by = 1): void {
    this.#counts[key] += by;
  }

  /** A response began again: its tokens were taken back. */
  restarted(tokens: number): void {
    this.#counts.restarts += 1;
    this.#counts.restarted_tokens += tokens;
  }

  requestFinished(request: RolloutRequest): void {
    const { response, group } = request;
    this.#counts.finished_requests += 1;
    if (group.finished === group.requests.length) {
      this.#counts.finished_groups += 1;
      group.endedIn = this.iteration;
    }
    this.#timeline.finished(request);
    this.#timeLeft.finished(request);
    if (response.refusal !== null) this.#counts.failed_requests += 1;
    else if (response.finish === "abort") this.#counts.aborted_requests += 1;
    this.#span?.ends.add(this.#clock.nowMs());
  }

  stats(workerId: WorkerId, stats: WorkerStats): void {
    const tally = this.#tallies.get(workerId);
    if (tally === undefined) return;
    if (hasWorked(tally.stats, stats)) tally.progressMs = this.#turnMs;
    tally.stats = stats;
    tally.kvTokensPeak = Math.max(tally.kvTokensPeak, stats.kvTokensUsed);
    const { baseRows = this.#load.paces.base } = tally.worker.capacity;
    this.#timeline.sample(workerId, this.#turnMs, stats, baseRows);
  }

  /** The worker's last report; null: none yet. */
  latest(workerId: WorkerId): WorkerStats | null {
    return this.#tallies.get(workerId)?.stats ?? null;
  }

  clocks(): EngineClock[] {
    const nowMs = this.#clock.nowMs();
    return [...this.#tallies].map(([worker, { stats, progressMs }]) => {
      const running = this.#load.running(worker);
      return engineClock({ worker, running, stats, progressMs }, this.#load.paces, nowMs);
    });
  }

  pool(stats: KvPoolStats): void {
    this.#poolMemoryPeak = Math.max(this.#poolMemoryPeak, stats.memoryBytes);
    this.#poolDiskPeak = Math.max(this.#poolDiskPeak, stats.diskBytes);
  }

  get counts(): Readonly<Counts> {
    return this.#counts;
  }

  /** Figures of the current iteration, or of the last one. */
  figures(): Figures {
    const counted = this.#counted();
    return this.#span?.figures(counted) ?? counted;
  }

  progress() {
    const now = this.#clock.nowMs();
    let running = 0;
    for (const { stats } of this.#tallies.values()) running += stats?.running ?? 0;
    if (now - this.#rateStartMs >= RATE_WINDOW_MS) {
      const tokens = this.#counts.output_tokens - this.#rateStartTokens;
      this.#tokensPerS = (tokens * 1000) / (now - this.#rateStartMs);
      this.#rateStartMs = now;
      this.#rateStartTokens = this.#counts.output_tokens;
    }
    const span = this.#span;
    const figures = this.figures();
    const left = figures.requests - figures.finished_requests;
    const etaS = left === 0 ? null : this.#secondsLeft(now, running, left);
    return {
      /** Number of the iteration; the first is 1. 0: none has begun. */
      iteration: this.iteration,
      /** Unfinished requests are at most a tenth of the iteration's. */
      isTail: span?.isTail(figures) ?? false,
      elapsedS: (now - (span?.startMs ?? this.#startMs)) / 1000,
      groupsDone: figures.finished_groups,
      groups: figures.groups,
      requestsDone: figures.finished_requests,
      requests: figures.requests,
      outputTokens: figures.output_tokens,
      /** Rate over about the last second. */
      tokensPerS: this.#tokensPerS,
      running,
      waiting: Math.max(0, left - running),
      migrations: figures.migrations,
      preemptions: figures.preemptions,
      meanAcceptanceLength: meanAcceptanceLength(figures),
      /** null until there is something to go by. */
      etaS,
      /** Bounds of the likely time left; see `time-left.ts`. null as etaS. */
      etaLowS: etaS && etaS / ETA_FACTOR,
      etaHighS: etaS && etaS * ETA_FACTOR,
      workers: this.#sorted.map(({ worker, stats }) => ({
        worker: worker.workerId as number,
        running: stats?.running ?? 0,
        /** Requests in the engine's own queue. */
        waiting: stats?.waiting ?? 0,
        slots: worker.capacity.slots,
        kvTokensUsed: stats?.kvTokensUsed ?? 0,
        kvTokens: worker.capacity.kvTokens,
      })),
    };
  }

  /** Time of the current iteration so far, or of the last one, and of its tail. */
  get times(): { readonly wallS: number; readonly tailS: number } {
    const { requests, finished_requests: finished } = this.figures();
    const nowMs = this.#clock.nowMs();
    const { startMs, ends } = this.#span ?? { startMs: this.#startMs, ends: new Ends() };
    const endMs = finished < requests ? nowMs : (ends.lastMs ?? nowMs);
    const tailMs = requests === 0 ? 0 : endMs - ends.tailStartMs(requests, { startMs, endMs });
    return { wallS: (endMs - startMs) / 1000, tailS: tailMs / 1000 };
  }

  /** Chunks and load of the current iteration, or of the last one. */
  timeline(): Timeline {
    const startMs = this.#span?.startMs ?? this.#startMs;
    const workers = this.#sorted.map(({ worker }) => worker);
    return this.#timeline.report({ startMs, open: this.#open(), workers });
  }

  /** Report of the engines since the beginning, for a rollout of these times. */
  report(times: { startMs: number; endMs: number; pool: KvPoolStats }) {
    const counted = this.#counted();
    const { output_tokens: tokens, accepted_tokens: accepted } = counted;
    return {
      ...counted,
      mean_acceptance_length: meanAcceptanceLength(counted),
      /** Output tokens per request and engine step over the whole run. */
      tokens_per_step: tokens / Math.max(1, tokens - accepted),
      kv_pool: {
        memory_bytes_peak: this.#poolMemoryPeak,
        disk_bytes_peak: this.#poolDiskPeak,
        ...sumsOf(POOL_FIGURES, [times.pool]),
      },
      /** Moves by the engines' own KV connectors; null: no engine has one. */
      kv_moves: kvMovesReport([...this.#tallies.values()].map(({ stats }) => stats?.kvMoves)),
      workers: this.#sorted.map((tally) => workerReport(tally, times)),
      /** Places and times of all chunks: `foretoken trace` draws it. */
      timeline: this.timeline(),
    };
  }

  get #sorted(): WorkerTally[] {
    return [...this.#tallies.values()].sort((a, b) => a.worker.workerId - b.worker.workerId);
  }

  /** Estimated anew now and then; in between the time runs down. */
  #secondsLeft(now: number, running: number, open: number): number | null {
    const everyMs = Math.max(ETA_MS, ETA_REQUEST_MS * open);
    if (this.#ends === null || now - this.#ends.atMs >= everyMs) {
      const speed = { running, tokensPerS: this.#tokensPerS };
      const leftS = this.#timeLeft.seconds(this.#open(), this.#learned, speed);
      this.#ends = { atMs: now, leftS };
    }
    const { atMs, leftS } = this.#ends;
    return leftS && Math.max(0, leftS - (now - atMs) / 1000);
  }

  #counted(): Figures {
    const stats = [...this.#tallies.values()].flatMap((tally) => tally.stats ?? []);
    return { ...this.#counts, ...this.#sums(stats) };
  }

  /** Sums over `stats` and the workers that were removed. */
  #sums(stats: readonly WorkerStats[]): Record<WorkerKey, number> {
    const sums = sumsOf(WORKER_FIGURES, stats);
    for (const { key } of WORKER_FIGURES) sums[key] += this.#forgotten[key];
    return sums;
  }
}

/** The worker has made steps, or tokens, between the two reports. */
function hasWorked(before: WorkerStats | null, after: WorkerStats): boolean {
  const { steps, outputTokens, prefillTokens } = after;
  return (
    steps !== (before?.steps ?? 0) ||
    outputTokens !== before?.outputTokens ||
    prefillTokens !== before.prefillTokens
  );
}

/** KV moves of one engine, or of all together; null: no engine moves KV by a connector. */
export function kvMovesReport(all: readonly (KvMoveStats | undefined)[]) {
  const moves = all.filter((one) => one !== undefined);
  if (moves.length === 0) return null;
  const connectors = [...new Set(moves.map(({ connector }) => connector))];
  return { connectors, ...sumsOf(KV_MOVE_FIGURES, moves) };
}

/** 1 + accepted tokens / drafts; 1 where nothing was drafted. */
function meanAcceptanceLength({ drafts, accepted_tokens: accepted }: Readonly<Figures>): number {
  return drafts <= 0 ? 1 : 1 + accepted / drafts;
}

function workerReport(
  { worker, stats, outputTokens, kvTokensPeak, lastTokenMs }: WorkerTally,
  { startMs, endMs }: { startMs: number; endMs: number },
) {
  const wallMs = Math.max(1e-9, endMs - startMs);
  return {
    ...sumsOf(WORKER_FIGURES, stats === null ? [] : [stats]),
    worker: worker.workerId as number,
    /** Share of the wall time spent inside engine steps, 0..1. */
    busy_share: (stats?.busyMs ?? 0) / wallMs,
    /** Wall time between this worker's last token and the end of the run. */
    idle_tail_s: (endMs - Math.max(lastTokenMs, startMs)) / 1000,
    output_tokens: outputTokens,
    /** Highest KV use seen, and the budget, in tokens. */
    kv_tokens_peak: kvTokensPeak,
    kv_tokens: worker.capacity.kvTokens,
    /** Time inside the drafter over time inside engine steps. */
    draft_share: (stats?.draftMs ?? 0) / Math.max(1e-9, stats?.busyMs ?? 0),
  };
}
