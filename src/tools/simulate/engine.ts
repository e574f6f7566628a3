// One modelled engine behind the worker port: continuous batching over paged KV, in virtual time. It moves from one
// change of its batch to the next (a chunk ends, a request comes, KV runs out), never token by token. It decides
// nothing but what an engine decides: whom to admit (first come, first served) and whom to preempt (the youngest, as
// vLLM does). Its KV moves as that of vLLM servers with a shared pool: what leaves it is found there by the next engine.
//
// Between two changes every running request gains `rate` tokens a step, and the step time grows linearly with
// the tokens of context: n steps take n t + growth n^2 / 2.

import { assert, present } from "../../core/base/assert.ts";
import { type RequestId, type WorkerId, weightEpoch } from "../../core/base/ids.ts";
import type { StepTimes } from "../../core/draft/draft-length.ts";
import { DRAFT_TOKENS_MAX } from "../../core/draft/drafter.ts";
import type { ControlAnswer } from "../../core/rollout/operation.ts";
import type {
  EngineWorker,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
  WorkerStats,
} from "../../core/rollout/worker.ts";
import { tokensOf } from "./counted-response.ts";

/** The time model of one engine, in ms. */
export interface EngineTimes {
  readonly kvBytesPerToken: number;
  /**
   * A step that decodes `rows` tokens of `batch` requests whose contexts add up to `contextTokens`: rows >= batch >= 1.
   */
  stepMs(batch: number, rows: number, contextTokens: number): number;
  /** Prefill of `tokens` tokens behind `before` tokens whose KV exists. */
  prefillMs(tokens: number, before: number): number;
  /** Transfer of the KV of `tokens` between the engine and the pool that all share. */
  transferMs(tokens: number): number;
}

/** A running request, as the model of drafting sees it. */
export interface Drafting {
  /** Mean probability that the next draft token is accepted, 0..1, in steps of a hundredth. */
  quality: number;
  readonly isUrgent: boolean;
  /** Tokens that a step yields (>= 1), set by `plan`; `rows`: rows that it verifies (>= 1). */
  rate: number;
  rows: number;
}

export interface Speculation {
  /** Sets rate and rows of each request; returns the milliseconds that drafting adds to a step. */
  plan(running: readonly Drafting[], times: StepTimes): number;
}

/** The part of a simulation that all its engines share. */
export interface EngineWorld {
  nowMs(): number;
  /** Number of output tokens with which the request ends. */
  lengthOf(requestId: RequestId): number;
  /** Mean probability that the next draft token of the request is accepted. */
  qualityOf(requestId: RequestId): number;
  /** Called when the request starts to run: first, or again after it waited or was preempted. */
  admitted(requestId: RequestId): void;
  /** Called when `tokens` tokens of KV of the request have moved from the engine to the shared pool. */
  stored(requestId: RequestId, tokens: number, from: WorkerId): void;
  /** Tokens of the request's KV in the shared pool, which `to` is about to load. */
  loading(requestId: RequestId, to: WorkerId): number;
}

export interface EngineModel {
  readonly slots: number;
  /** KV budget in tokens. */
  readonly kvTokens: number;
  readonly times: EngineTimes;
  /** The engine's model of drafting; null: it drafts nothing. */
  readonly speculation: Speculation | null;
}

/** One chunk of a request on an engine. */
interface Run extends Drafting {
  readonly requestId: RequestId;
  /** Output tokens before this chunk. */
  readonly position: number;
  /** Output tokens that this chunk makes unless it is taken away; `isLast`: whether the response then ends. */
  readonly tokens: number;
  readonly isLast: boolean;
  /** Tokens of KV that the request has, or needs while it waits. Fractional between two changes. */
  context: number;
  /** Tokens of `context` whose KV exists when the request is admitted. */
  kvTokens: number;
  /** Output tokens until the chunk ends. Fractional between two changes. */
  left: number;
  /** Output tokens of the response at the last report. `reported`: those that the listener knows of. */
  made: number;
  reported: number;
}

export interface EngineOptions extends EngineModel {
  readonly workerId: WorkerId;
  /** Limit of prompt and output tokens of one request. */
  readonly contextTokens: number;
  /** See `WorkerCapacity`. */
  readonly sharesKv: boolean;
  readonly world: EngineWorld;
  /** Limit of a request's unreported tokens; a chunk's end is reported at once. Infinity: whole requests only. */
  readonly reportTokens: number;
  /** Whether the engine reports its step times. */
  readonly isPaced: boolean;
}

/** A chunk with fewer remaining tokens is over: sums of fractions are not exact. */
const EPSILON = 1e-6;
/** Maximum time between two reports of tokens. */
const REPORT_MS = 120_000;
/** From this part of the limit on, tokens are reported early if the engine stops anyway. */
const REPORT_EARLY = 3 / 4;
/** Upper bound of the tokens that a step makes of one request. */
const RATE_MAX = 1 + DRAFT_TOKENS_MAX;
const EPOCH = weightEpoch(0);

export class SimulatedEngine implements EngineWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  /** Totals since the start; times in virtual ms. */
  readonly counters = {
    preemptions: 0,
    recomputedTokens: 0,
    prefillTokens: 0,
    steps: 0,
    busyMs: 0,
    verifiedRows: 0,
    /** Steps summed over the requests that took part in them. */
    sequenceSteps: 0,
    outputTokens: 0,
    lastTokenMs: 0,
  };
  readonly #options: EngineOptions;
  readonly #running: Run[] = [];
  /** Waiting runs, first come, first served; a preempted run goes to the front. */
  readonly #waiting: Run[] = [];
  readonly #parked = new Map<RequestId, number>();
  /** Requests whose KV is on its way to this engine. */
  readonly #loading = new Set<RequestId>();
  /** Transfers on the engine's link to the pool, in order, each with the action at its end. */
  readonly #transfers: { readonly atMs: number; readonly act: () => void }[] = [];
  #listener: WorkerListener | null = null;
  #events: WorkerEvent[] = [];
  #parkedTokens = 0;
  /** KV of running requests, as of the last change of the batch. */
  #kvUsed = 0;
  #atMs = 0;
  /** Time of prefill still to do, for which decoding waits. */
  #stallMs = 0;
  /** The current stretch: its number of steps, the time of the next one, and how much longer each is than the one before. */
  #steps = 0;
  #stepMs = 0;
  #growthMs = 0;
  #rows = 0;
  /** Tokens that a step makes, summed over all running requests. */
  #rate = 0;
  /** Whether the batch may have changed since the stretch was planned. */
  #isStale = false;
  #changeMs = Number.POSITIVE_INFINITY;
  /** Latest time of the next report. */
  #reportMs = Number.POSITIVE_INFINITY;
  #unreported = 0;

  constructor(options: EngineOptions) {
    const { workerId, slots, kvTokens, contextTokens, times, sharesKv } = options;
    this.#options = options;
    this.workerId = workerId;
    this.name = `modelled engine ${workerId}`;
    const { kvBytesPerToken } = times;
    this.capacity = { slots, kvTokens, contextTokens, kvBytesPerToken, sharesKv };
  }

  listen(listener: WorkerListener): void {
    this.#listener = listener;
  }

  supports(): SamplingSupport {
    return { kind: "divided" };
  }

  async perform(): Promise<ControlAnswer> {
    return { status: 404, body: null };
  }

  async close(): Promise<void> {}

  send(commands: readonly WorkerCommand[]): void {
    this.#advance();
    for (const command of commands) this.#obey(command);
    this.#isStale = true;
  }

  /** Virtual time of the next change without a command; -Infinity: a turn is due; Infinity: none. */
  get nextMs(): number {
    if (this.#isStale) return Number.NEGATIVE_INFINITY;
    return Math.min(this.#changeMs, this.#reportMs, this.#transferMs);
  }

  /** End of the first transfer. */
  get #transferMs(): number {
    return this.#transfers.at(0)?.atMs ?? Number.POSITIVE_INFINITY;
  }

  /** Tokens of KV held now, by running and parked requests. */
  get kvUsed(): number {
    return this.#kvUsed + this.#parkedTokens;
  }

  /** Performs the changes that are due; returns whether there are events for the listener. */
  turn(): boolean {
    const nowMs = this.#options.world.nowMs();
    if (nowMs < this.nextMs) return false;
    this.#advance();
    while (this.#transferMs <= nowMs) {
      this.#transfers.shift()?.act();
      this.#isStale = true;
    }
    this.#settle();
    if (nowMs >= this.#reportMs) this.#report();
    const events = this.#events;
    if (events.length === 0) return false;
    this.#events = [];
    this.#listener?.(EPOCH, events);
    return true;
  }

  /** Reports the tokens that reports have left out so far. */
  flush(): void {
    for (const runs of [this.#running, this.#waiting]) for (const run of runs) this.#tell(run);
    this.#listener?.(EPOCH, this.#events);
    this.#events = [];
  }

  #obey(command: WorkerCommand): void {
    if (command.kind === "run") this.#run(command);
    else if (command.kind === "export") this.#export(command.requestId);
    else if (command.kind === "release") this.#release(command.requestId);
    else {
      assert(command.kind === "park", `a modelled engine takes no ${command.kind}`);
      if (this.#end(command.requestId)) this.#events.push(endOf(command.requestId, false));
    }
  }

  #run({ request, output, chunkTokens, priority }: Extract<WorkerCommand, { kind: "run" }>): void {
    const { world, speculation } = this.#options;
    const { requestId, prompt } = request;
    const position = output.length;
    const left = world.lengthOf(requestId) - position;
    const tokens = Math.min(left, chunkTokens);
    const run: Run = {
      requestId,
      position,
      tokens,
      isLast: tokens === left,
      context: prompt.length + position,
      kvTokens: this.#unpark(requestId),
      left: tokens,
      made: position,
      reported: position,
      quality: speculation === null ? 0 : world.qualityOf(requestId),
      isUrgent: priority === "high",
      rate: 1,
      rows: 1,
    };
    const stored = run.kvTokens > 0 ? 0 : world.loading(requestId, this.workerId);
    if (stored === 0) {
      this.#waiting.push(run);
      return;
    }
    this.#loading.add(requestId);
    this.#transfer(stored, () => {
      run.kvTokens = stored;
      if (this.#loading.delete(requestId)) this.#waiting.push(run);
    });
  }

  /** Frees the KV of a request that was given up, or whose KV is not needed any more. */
  #release(requestId: RequestId): void {
    this.#unpark(requestId);
    this.#loading.delete(requestId);
    for (const runs of [this.#running, this.#waiting]) {
      const at = runs.findIndex((run) => run.requestId === requestId);
      if (at >= 0) runs.splice(at, 1);
    }
  }

  /** A running chunk ends with what it has, and its KV is parked; false: it is almost over, or none runs. */
  #end(requestId: RequestId): boolean {
    const at = this.#running.findIndex((run) => run.requestId === requestId);
    const run = this.#running[at];
    if (run === undefined || run.left < 1) return false;
    this.#running.splice(at, 1);
    loseStep(run);
    this.#park(run);
    this.#tellAll(run);
    return true;
  }

  /** Moves KV to the pool. */
  #export(requestId: RequestId): void {
    const answer: WorkerEvent = { kind: "exported", requestId, kv: null };
    const isEnded = this.#end(requestId);
    const tokens = this.#parked.get(requestId);
    if (tokens === undefined) {
      this.#events.push(answer);
      return;
    }
    this.#transfer(tokens, () => {
      this.#unpark(requestId);
      this.#options.world.stored(requestId, tokens, this.workerId);
      if (isEnded) this.#events.push(endOf(requestId, false));
      this.#events.push(answer);
    });
  }

  /** Queues a transfer of `tokens` on the link; it begins when the link is free. */
  #transfer(tokens: number, act: () => void): void {
    const startMs = Math.max(this.#atMs, this.#transfers.at(-1)?.atMs ?? 0);
    const atMs = startMs + this.#options.times.transferMs(tokens);
    this.#transfers.push({ atMs, act });
  }

  #park({ requestId, context }: Run): void {
    this.#parked.set(requestId, context);
    this.#parkedTokens += context;
  }

  /** Forgets the KV of a request that does not run; returns its tokens. */
  #unpark(requestId: RequestId): number {
    const tokens = this.#parked.get(requestId) ?? 0;
    this.#parked.delete(requestId);
    this.#parkedTokens -= tokens;
    return tokens;
  }

  /** Advances the work to the current time, at most to the next change. */
  #advance(): void {
    const nowMs = this.#options.world.nowMs();
    let ms = nowMs - this.#atMs;
    this.#atMs = nowMs;
    if (this.#running.length === 0 || ms <= 0) return;
    this.counters.busyMs += ms;
    const stall = Math.min(this.#stallMs, ms);
    this.#stallMs -= stall;
    ms -= stall;
    if (ms > 0) this.#progress(Math.min(this.#steps, this.#stepsIn(ms)));
  }

  /** Ends finished chunks, makes room, admits requests, reports, and determines the time of the next change. */
  #settle(): void {
    this.#endChunks();
    if (!this.#isStale && this.#steps > EPSILON) return;
    this.#isStale = false;
    this.#kvUsed = this.#running.reduce((tokens, { context }) => tokens + context, 0);
    const preempted = this.#isNearlyFull && this.#makeRoom();
    // As in vLLM, a step that had to preempt admits no request.
    if (!preempted) this.#admit();
    const { reportTokens } = this.#options;
    const due = REPORT_EARLY * reportTokens * this.#running.length;
    // Where requests are whole, one step after the other may preempt, and no decision depends on tokens.
    if (preempted || this.#unreported >= due) this.#report(reportTokens < Infinity);
    if (this.#running.length > 0 && this.#reportMs === Infinity) {
      this.#reportMs = this.#atMs + REPORT_MS;
    }
    this.#plan();
  }

  /** Whether running requests may lack room for another step. */
  get #isNearlyFull(): boolean {
    return this.kvUsed + RATE_MAX * this.#running.length > this.capacity.kvTokens;
  }

  #endChunks(): void {
    const running = this.#running;
    let kept = running.findIndex(({ left }) => left <= EPSILON);
    if (kept < 0) return;
    const ended: Run[] = [];
    for (const run of running.slice(kept)) {
      if (run.left <= EPSILON) ended.push(run);
      else running[kept++] = run;
    }
    running.length = kept;
    this.#isStale = true;
    this.counters.lastTokenMs = this.#atMs;
    for (const run of ended) {
      run.left = 0;
      run.context = Math.round(run.context);
      if (!run.isLast) this.#park(run);
      this.#tellAll(run);
      this.#events.push(endOf(run.requestId, run.isLast));
    }
  }

  #makeRoom(): boolean {
    const { kvTokens } = this.capacity;
    let preempted = false;
    for (;;) {
      let next = 0;
      for (const run of this.#running) next += Math.min(run.rate, run.left);
      if (this.kvUsed + next <= kvTokens + EPSILON) return preempted;
      if (this.#evict()) continue;
      const youngest = present(this.#running.pop(), "running requests hold the KV");
      assert(this.#running.length > 0, "one request fits into the KV");
      this.#kvUsed -= youngest.context;
      loseStep(youngest);
      youngest.kvTokens = 0;
      this.#waiting.unshift(youngest);
      this.counters.preemptions += 1;
      preempted = true;
    }
  }

  /** Drops the KV that has been parked longest; false: none is. */
  #evict(): boolean {
    const oldest = this.#parked.keys().next().value;
    if (oldest === undefined) return false;
    this.#unpark(oldest);
    this.#events.push({ kind: "evicted", requestId: oldest });
    return true;
  }

  #admit(): void {
    const { times, world } = this.#options;
    const { slots, kvTokens } = this.capacity;
    while (this.#waiting.length > 0 && this.#running.length < slots) {
      const run = this.#waiting[0];
      if (run === undefined || this.kvUsed + run.context + 1 > kvTokens) return;
      this.#waiting.shift();
      const missing = run.context - run.kvTokens;
      this.#stallMs += times.prefillMs(missing, run.kvTokens);
      this.counters.prefillTokens += missing;
      if (run.position > 0 || run.left < run.tokens) this.counters.recomputedTokens += missing;
      this.#kvUsed += run.context;
      this.#running.push(run);
      world.admitted(run.requestId);
    }
  }

  /** Reports counters and tokens of all running requests; false: only the first tokens of each chunk. */
  #report(hasTokens = true): void {
    const { speculation, world } = this.#options;
    for (const run of this.#running) {
      if (hasTokens || run.reported === run.position) this.#tellAll(run);
      else run.made = madeBy(run);
      if (speculation !== null) run.quality = world.qualityOf(run.requestId);
    }
    this.#events.push({ kind: "stats", stats: this.#stats() });
    this.#unreported = 0;
    this.#reportMs = this.#running.length === 0 ? Infinity : this.#atMs + REPORT_MS;
  }

  #tellAll(run: Run): void {
    run.made = madeBy(run);
    this.#tell(run);
  }

  /** Reports the tokens up to `made` that the listener does not have yet. */
  #tell(run: Run): void {
    const { requestId, made, reported: offset } = run;
    if (made <= offset) return;
    run.reported = made;
    const { tokens, logprobs } = tokensOf(made - offset);
    this.#events.push({ kind: "tokens", requestId, offset, tokens, logprobs, top: null });
  }

  #stats(): WorkerStats {
    const { lastTokenMs: _, verifiedRows, sequenceSteps, ...counters } = this.counters;
    return {
      ...counters,
      running: this.#running.length,
      waiting: this.#waiting.length,
      kvTokensUsed: this.kvUsed,
      draftMs: 0,
      outputTokens: this.#options.isPaced ? counters.outputTokens : 0,
      acceptedTokens: counters.outputTokens - sequenceSteps,
      draftedTokens: verifiedRows - sequenceSteps,
      drafts: sequenceSteps,
      kvLoads: 0,
      kvLoadFailures: 0,
    };
  }

  /** Plans the next stretch with the requests that run now. */
  #plan(): void {
    const { times, speculation, reportTokens } = this.#options;
    const batch = this.#running.length;
    if (batch === 0) {
      this.#changeMs = Number.POSITIVE_INFINITY;
      return;
    }
    const context = this.#kvUsed / batch;
    const stepTimes = { ms: (b: number, rows: number) => times.stepMs(b, rows, b * context) };
    const draftMs = speculation?.plan(this.#running, stepTimes) ?? 0;
    let rows = 0;
    let rate = 0;
    let steps = Number.POSITIVE_INFINITY;
    for (const run of this.#running) {
      rows += run.rows;
      rate += run.rate;
      steps = Math.min(steps, run.left / run.rate);
    }
    const room = this.capacity.kvTokens - this.kvUsed;
    // The last stretch before KV runs out, or before a report, has less than a step's room; it still takes one step.
    const most = Math.min(room, reportTokens * batch - this.#unreported);
    if (steps * rate > most) steps = Math.min(steps, Math.max(1, most / rate));
    this.#rows = rows;
    this.#rate = rate;
    this.#steps = steps;
    this.#stepMs = times.stepMs(batch, rows, this.#kvUsed) + draftMs;
    const last = times.stepMs(batch, rows, this.#kvUsed + steps * rate) + draftMs;
    this.#growthMs = (last - this.#stepMs) / steps;
    this.#schedule();
  }

  #schedule(): void {
    const ms = this.#steps * this.#stepMs + (this.#growthMs * this.#steps ** 2) / 2;
    this.#changeMs = this.#atMs + this.#stallMs + ms;
  }

  /** Number of steps in `ms`: the root of n t + growth n^2 / 2 = ms. */
  #stepsIn(ms: number): number {
    if (this.#growthMs < 1e-12) return ms / this.#stepMs;
    return (Math.sqrt(this.#stepMs ** 2 + 2 * this.#growthMs * ms) - this.#stepMs) / this.#growthMs;
  }

  #progress(steps: number): void {
    const made = steps * this.#rate;
    this.#steps -= steps;
    const isOver = this.#steps < EPSILON;
    for (const run of this.#running) {
      const tokens = steps * run.rate;
      run.context += tokens;
      const left = run.left - tokens;
      // Sums of fractions leave a remainder that would never be worked off.
      run.left = isOver && left < run.rate * EPSILON ? 0 : left;
    }
    this.#kvUsed += made;
    this.#unreported += made;
    this.#stepMs += this.#growthMs * steps;
    this.counters.steps += steps;
    this.counters.outputTokens += made;
    this.counters.verifiedRows += steps * this.#rows;
    this.counters.sequenceSteps += steps * this.#running.length;
    this.#schedule();
  }
}

const endOf = (requestId: RequestId, isLast: boolean) =>
  ({ kind: "chunk_done", requestId, finish: isLast ? "stop" : null }) as const;

/** Output tokens of the response: those of whole steps. */
function madeBy({ position, tokens, left }: Run): number {
  return position + Math.floor(tokens - left + EPSILON);
}

/** Discards a step in progress. */
function loseStep(run: Run): void {
  run.context = Math.floor(run.context + EPSILON);
  run.left = Math.ceil(run.left - EPSILON);
}
