// Counts what happens in a run and renders it as Progress and RunReport. It changes nothing.

import type { Clock } from "../base/clock.ts";
import type { WeightEpoch, WorkerId } from "../base/ids.ts";
import type { KvPoolStats } from "../kv/pool.ts";
import type { Group, Request } from "../request/buffer.ts";
import { kvMovesReport, type Progress, type RunReport, type WorkerReport } from "./report.ts";
import { type TimeLeft, timeLeft } from "./time-left.ts";
import { type Timeline, TimelineRecorder } from "./timeline.ts";
import type { Worker, WorkerStats } from "./worker.ts";

/** Tail: the last 10 % of requests (paper, Fig. 8). */
const TAIL_SHARE = 0.1;
/**
 * Times of finished requests kept, at least: more than the tail of the largest rollout, 10 % of the 262,144 that
 * the request buffer holds. A sidecar never ends, and asks for no tail.
 */
const FINISHES_KEPT = 32_768;
/** tokens/s is shown over about this long. */
const RATE_WINDOW_MS = 1000;
/** Between two estimates of the end. */
const ETA_MS = 1000;

interface WorkerTally {
  readonly worker: Worker;
  stats: WorkerStats | null;
  outputTokens: number;
  kvTokensPeak: number;
  lastTokenMs: number;
}

/** Counts of a worker that are added up over all of them. */
const SUMMED = [
  "preemptions",
  "recomputedTokens",
  "draftedTokens",
  "acceptedTokens",
  "drafts",
] as const;
type Summed = (typeof SUMMED)[number];

/** Counts since the beginning; as in RunReport. */
export interface MeterCounters {
  readonly outputTokens: number;
  readonly chunks: number;
  /** Chunks that were ended early because their worker was short of KV. */
  readonly chunksEndedEarly: number;
  readonly migrations: number;
  readonly migratedBytes: number;
  readonly lost: number;
  readonly duplicated: number;
  readonly late: number;
  readonly restarted: number;
  readonly resumed: number;
  readonly poolFailures: number;
  readonly quarantined: number;
}

/** Counts at the begin of an iteration. Requests and groups: those that were finished. */
interface Counts {
  readonly startMs: number;
  readonly groups: number;
  readonly requests: number;
  readonly outputTokens: number;
  readonly migrations: number;
  readonly preemptions: number;
  readonly drafts: number;
  readonly accepted: number;
}

const NOTHING: Counts = {
  startMs: 0,
  groups: 0,
  requests: 0,
  outputTokens: 0,
  migrations: 0,
  preemptions: 0,
  drafts: 0,
  accepted: 0,
};

export class Meter {
  readonly #clock: Clock;
  readonly #tallies = new Map<WorkerId, WorkerTally>();
  /** Sums over workers that were removed. */
  readonly #forgotten: Record<Summed, number> = {
    ...{ preemptions: 0, recomputedTokens: 0, draftedTokens: 0, acceptedTokens: 0, drafts: 0 },
  };
  #turnMs = 0;
  #startMs: number;
  #endMs: number;
  #rateStartMs: number;
  #rateStartTokens = 0;
  #tokensPerS = 0;
  #groups = 0;
  #groupsDone = 0;
  #requests = 0;
  #requestsDone = 0;
  /** When the last ones finished, in order. */
  #finishedMs: number[] = [];
  #outputTokens = 0;
  #chunks = 0;
  #chunksEndedEarly = 0;
  #migrations = 0;
  #migratedBytes = 0;
  #lost = 0;
  #duplicated = 0;
  #late = 0;
  #restarted = 0;
  #resumed = 0;
  #poolFailures = 0;
  #quarantined = 0;
  #requestsFailed = 0;
  readonly #open: () => Iterable<Request>;
  readonly #learned: (group: Group) => number | null;
  /** Number of the iteration, and the counts at its begin. */
  #iteration = 0;
  #before = NOTHING;
  #isOver = true;
  readonly #timeline = new TimelineRecorder();
  /** The last estimate, as times of the clock. */
  #ends: { readonly atMs: number; readonly left: TimeLeft | null } | null = null;
  #poolMemoryPeak = 0;
  #poolDiskPeak = 0;

  /** Time counts from now on. `requests`: those of all open groups, finished or not. `learned`: their L_g, if known. */
  constructor(
    clock: Clock,
    requests: () => Iterable<Request> = () => [],
    learned: (group: Group) => number | null = () => null,
  ) {
    this.#clock = clock;
    this.#open = requests;
    this.#learned = learned;
    this.#startMs = clock.nowMs();
    this.#endMs = this.#startMs;
    this.#rateStartMs = this.#startMs;
  }

  worker(worker: Worker): void {
    this.#tallies.set(worker.workerId, {
      worker,
      stats: null,
      outputTokens: 0,
      kvTokensPeak: 0,
      lastTokenMs: 0,
    });
  }

  /** Nothing is on it any more, whatever it said last. */
  workerGone(workerId: WorkerId): void {
    const tally = this.#tallies.get(workerId);
    if (tally?.stats == null) return;
    tally.stats = { ...tally.stats, running: 0, waiting: 0, kvTokensUsed: 0 };
  }

  /** It does not come back: what it did stays in the sums, and nothing else of it is kept. */
  workerForgotten(workerId: WorkerId): void {
    const stats = this.#tallies.get(workerId)?.stats ?? null;
    this.#tallies.delete(workerId);
    this.#timeline.forget(workerId);
    if (stats === null) return;
    for (const count of SUMMED) this.#forgotten[count] += stats[count];
  }

  /** Number of the current iteration, or of the last one. */
  get iteration(): number {
    return this.#iteration;
  }

  /** The next request begins another iteration. */
  iterationEnded(): void {
    this.#isOver = true;
  }

  #begin(): void {
    this.#isOver = false;
    this.#iteration += 1;
    this.#timeline.clear();
    this.#ends = null;
    this.#before = {
      startMs: this.#clock.nowMs(),
      groups: this.#groupsDone,
      requests: this.#requestsDone,
      outputTokens: this.#outputTokens,
      migrations: this.#migrations,
      preemptions: this.#sum("preemptions"),
      drafts: this.#sum("drafts"),
      accepted: this.#sum("acceptedTokens"),
    };
  }

  requestJoined(request: Request): void {
    if (this.#isOver) this.#begin();
    if (request.spec.sampleIndex === 0) this.#groups += 1;
    this.#requests += 1;
  }

  ended(): void {
    this.#endMs = this.#clock.nowMs();
  }

  /** What follows happens now: the clock is read once for all events of a message. */
  turn(): void {
    this.#turnMs = this.#clock.nowMs();
  }

  /** When the messages that are being handled came. */
  get turnMs(): number {
    return this.#turnMs;
  }

  tokens(workerId: WorkerId, fresh: number): void {
    this.#outputTokens += fresh;
    const tally = this.#tallies.get(workerId);
    if (tally === undefined) return;
    tally.outputTokens += fresh;
    tally.lastTokenMs = this.#turnMs;
  }

  lost(tokens: number): void {
    this.#lost += tokens;
  }

  /** Tokens of requests that had been given up or gone elsewhere: refused. */
  late(tokens: number): void {
    this.#late += tokens;
  }

  /** Tokens that were taken back. */
  restarted(tokens: number): void {
    this.#restarted += tokens;
  }

  /** Tokens that an earlier process generated. */
  resumed(tokens: number): void {
    this.#resumed += tokens;
  }

  duplicated(tokens: number): void {
    this.#duplicated += tokens;
  }

  chunk(): void {
    this.#chunks += 1;
  }

  /** A chunk was ended early, for lack of KV on its worker. */
  chunkEndedEarly(): void {
    this.#chunksEndedEarly += 1;
  }

  migration(): void {
    this.#migrations += 1;
  }

  migratedBytes(bytes: number): void {
    this.#migratedBytes += bytes;
  }

  /** Workers died of a request: it was ended. */
  quarantined(): void {
    this.#quarantined += 1;
  }

  requestFinished(request: Request): void {
    const { response } = request;
    this.#requestsDone += 1;
    this.#timeline.finished(request);
    if (response.refusal !== null) this.#requestsFailed += 1;
    this.#finishedMs.push(this.#clock.nowMs());
    if (this.#finishedMs.length < 2 * FINISHES_KEPT) return;
    this.#finishedMs = this.#finishedMs.slice(-FINISHES_KEPT);
  }

  groupFinished(): void {
    this.#groupsDone += 1;
  }

  stats(workerId: WorkerId, stats: WorkerStats): void {
    const tally = this.#tallies.get(workerId);
    if (tally === undefined) return;
    tally.stats = stats;
    tally.kvTokensPeak = Math.max(tally.kvTokensPeak, stats.kvTokensUsed);
    this.#timeline.sample(workerId, this.#turnMs, stats);
  }

  /** As the worker last told; null: nothing yet. */
  latest(workerId: WorkerId): WorkerStats | null {
    return this.#tallies.get(workerId)?.stats ?? null;
  }

  pool(stats: KvPoolStats): void {
    this.#poolMemoryPeak = Math.max(this.#poolMemoryPeak, stats.memoryBytes);
    this.#poolDiskPeak = Math.max(this.#poolDiskPeak, stats.diskBytes);
  }

  /** A call to the KV pool threw. */
  poolFailed(): void {
    this.#poolFailures += 1;
  }

  get counters(): MeterCounters {
    return {
      outputTokens: this.#outputTokens,
      chunks: this.#chunks,
      chunksEndedEarly: this.#chunksEndedEarly,
      migrations: this.#migrations,
      migratedBytes: this.#migratedBytes,
      lost: this.#lost,
      duplicated: this.#duplicated,
      late: this.#late,
      restarted: this.#restarted,
      resumed: this.#resumed,
      poolFailures: this.#poolFailures,
      quarantined: this.#quarantined,
    };
  }

  progress(): Progress {
    const now = this.#clock.nowMs();
    let running = 0;
    for (const tally of this.#tallies.values()) running += tally.stats?.running ?? 0;
    if (now - this.#rateStartMs >= RATE_WINDOW_MS) {
      const tokens = this.#outputTokens - this.#rateStartTokens;
      this.#tokensPerS = (tokens * 1000) / (now - this.#rateStartMs);
      this.#rateStartMs = now;
      this.#rateStartTokens = this.#outputTokens;
    }
    const before = this.#before;
    const requestsDone = this.#requestsDone - before.requests;
    const requests = this.#requests - before.requests;
    const left = requests - requestsDone;
    const eta = left === 0 ? null : this.#timeLeft(now, running);
    return {
      iteration: this.#iteration,
      isTail: left > 0 && left <= Math.ceil(requests * TAIL_SHARE),
      elapsedS: (now - (this.#iteration === 0 ? this.#startMs : before.startMs)) / 1000,
      groupsDone: this.#groupsDone - before.groups,
      groups: this.#groups - before.groups,
      requestsDone,
      requests,
      outputTokens: this.#outputTokens - before.outputTokens,
      tokensPerS: this.#tokensPerS,
      running,
      waiting: Math.max(0, left - running),
      migrations: this.#migrations - before.migrations,
      preemptions: Math.max(0, this.#sum("preemptions") - before.preemptions),
      meanAcceptanceLength: this.#meanAcceptanceLength(before),
      etaS: eta && (eta.lowS + eta.highS) / 2,
      etaLowS: eta?.lowS ?? null,
      etaHighS: eta?.highS ?? null,
      workers: [...this.#tallies.values()].map(({ worker, stats }) => ({
        worker: worker.workerId,
        running: stats?.running ?? 0,
        waiting: stats?.waiting ?? 0,
        slots: worker.capacity.slots,
        kvTokensUsed: stats?.kvTokensUsed ?? 0,
        kvTokens: worker.capacity.kvTokens,
      })),
    };
  }

  /** Of the current iteration, or of the last one. */
  timeline(): Timeline {
    const startMs = this.#iteration === 0 ? this.#startMs : this.#before.startMs;
    const workers = [...this.#tallies.values()].map(({ worker }) => worker);
    return this.#timeline.report({ startMs, open: this.#open(), workers });
  }

  report(options: {
    policy: string;
    draft: string;
    deterministic: boolean;
    epoch: WeightEpoch;
    interrupted: boolean;
    pool: KvPoolStats;
  }): RunReport {
    const wallS = (this.#endMs - this.#startMs) / 1000;
    const accepted = this.#sum("acceptedTokens");
    return {
      policy: options.policy,
      draft: options.draft,
      deterministic: options.deterministic,
      weight_epoch: options.epoch,
      groups: this.#groups,
      requests: this.#requests,
      finished_requests: this.#requestsDone,
      failed_requests: this.#requestsFailed,
      wall_s: wallS,
      output_tokens: this.#outputTokens,
      output_tokens_per_s: wallS > 0 ? this.#outputTokens / wallS : 0,
      tail_s: (this.#endMs - this.#tailStartMs()) / 1000,
      preemptions: this.#sum("preemptions"),
      recomputed_tokens: this.#sum("recomputedTokens"),
      chunks: this.#chunks,
      chunks_ended_early: this.#chunksEndedEarly,
      migrations: this.#migrations,
      migrated_bytes: this.#migratedBytes,
      drafted_tokens: this.#sum("draftedTokens"),
      accepted_tokens: accepted,
      mean_acceptance_length: this.#meanAcceptanceLength(),
      tokens_per_step: this.#outputTokens / Math.max(1, this.#outputTokens - accepted),
      lost_tokens: this.#lost,
      duplicated_tokens: this.#duplicated,
      late_tokens: this.#late,
      restarted_tokens: this.#restarted,
      resumed_tokens: this.#resumed,
      kv_pool: {
        memory_bytes_peak: this.#poolMemoryPeak,
        disk_bytes_peak: this.#poolDiskPeak,
        hits: options.pool.hits,
        misses: options.pool.misses,
        corrupt: options.pool.corrupt,
        evictions: options.pool.evictions,
        disk_errors: options.pool.diskErrors,
      },
      kv_moves: kvMovesReport([...this.#tallies.values()].map(({ stats }) => stats?.kvMoves)),
      workers: [...this.#tallies.values()].map((tally) => this.#workerReport(tally)),
      interrupted: options.interrupted,
      timeline: this.timeline(),
    };
  }

  #workerReport({
    worker,
    stats,
    outputTokens,
    kvTokensPeak,
    lastTokenMs,
  }: WorkerTally): WorkerReport {
    const wallMs = Math.max(1e-9, this.#endMs - this.#startMs);
    return {
      worker: worker.workerId,
      busy_share: (stats?.busyMs ?? 0) / wallMs,
      idle_tail_s: (this.#endMs - Math.max(lastTokenMs, this.#startMs)) / 1000,
      output_tokens: outputTokens,
      prefill_tokens: stats?.prefillTokens ?? 0,
      recomputed_tokens: stats?.recomputedTokens ?? 0,
      preemptions: stats?.preemptions ?? 0,
      steps: stats?.steps ?? 0,
      drafted_tokens: stats?.draftedTokens ?? 0,
      accepted_tokens: stats?.acceptedTokens ?? 0,
      kv_tokens_peak: kvTokensPeak,
      kv_tokens: worker.capacity.kvTokens,
      draft_share: (stats?.draftMs ?? 0) / Math.max(1e-9, stats?.busyMs ?? 0),
    };
  }

  /** Estimated anew once a second; in between the time runs down. */
  #timeLeft(now: number, running: number): TimeLeft | null {
    if (this.#ends === null || now - this.#ends.atMs >= ETA_MS) {
      const speed = { running, tokensPerS: this.#tokensPerS };
      this.#ends = { atMs: now, left: timeLeft(this.#open(), this.#learned, speed) };
    }
    const { atMs, left } = this.#ends;
    if (left === null) return null;
    const rest = (seconds: number) => Math.max(0, seconds - (now - atMs) / 1000);
    return { lowS: rest(left.lowS), highS: rest(left.highS) };
  }

  /** The tail begins when all but the last TAIL_SHARE of the requests have finished. */
  #tailStartMs(): number {
    const before = this.#requests - Math.ceil(this.#requests * TAIL_SHARE);
    if (before === 0) return this.#startMs;
    const forgotten = this.#requestsDone - this.#finishedMs.length;
    return this.#finishedMs[Math.max(0, before - 1 - forgotten)] ?? this.#endMs;
  }

  #meanAcceptanceLength(before: Pick<Counts, "drafts" | "accepted"> = NOTHING): number {
    const drafts = this.#sum("drafts") - before.drafts;
    return drafts <= 0 ? 1 : 1 + (this.#sum("acceptedTokens") - before.accepted) / drafts;
  }

  #sum(count: Summed): number {
    let total = this.#forgotten[count];
    for (const { stats } of this.#tallies.values()) if (stats !== null) total += stats[count];
    return total;
  }
}
