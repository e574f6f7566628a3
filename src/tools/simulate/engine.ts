// One modelled engine: continuous batching over paged KV, in virtual time. It moves from one change of its batch to
// the next (a chunk ends, a request comes, KV runs out), never token by token. It decides nothing but what an
// engine decides: whom to admit (first come, first served) and whom to preempt (the youngest, as vLLM does).
//
// Between two changes every running request gains `rate` tokens a step, and the step time grows linearly with
// the tokens of context: n steps take n t + growth n^2 / 2.

import { assert, present } from "../../core/base/assert.ts";
import type { RequestId, WorkerId } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import type { Drafting, Speculation } from "./speculation.ts";
import type { StepModel } from "./step-time.ts";

/** One chunk of a request on an engine. */
export interface Run extends Drafting {
  readonly request: Request;
  /** Output tokens before this chunk. */
  readonly position: number;
  /** Output tokens that this chunk makes unless it is taken away, and whether the response then ends. */
  readonly tokens: number;
  readonly isLast: boolean;
  /** Tokens of KV it has, or needs while it waits. Fractional between two changes. */
  context: number;
  /** Of `context`, tokens whose KV is at hand when it is admitted. */
  kvTokens: number;
  /** Output tokens until the chunk ends. Fractional between two changes. */
  left: number;
}

export interface EngineEvents {
  admitted(engine: ModelledEngine, run: Run): void;
  chunkEnded(engine: ModelledEngine, run: Run): void;
}

/** Cumulative; times in virtual ms. */
export interface EngineCounters {
  preemptions: number;
  recomputedTokens: number;
  prefillTokens: number;
  steps: number;
  busyMs: number;
  verifiedRows: number;
  /** Steps summed over the requests that took part in them. */
  sequenceSteps: number;
  outputTokens: number;
  lastTokenMs: number;
}

/** Below this many tokens a chunk is over: sums of fractions are not exact. */
const EPSILON = 1e-6;

export class ModelledEngine {
  readonly workerId: WorkerId;
  readonly slots: number;
  readonly kvTokens: number;
  readonly model: StepModel;
  readonly running: Run[] = [];
  readonly counters: EngineCounters = {
    preemptions: 0,
    recomputedTokens: 0,
    prefillTokens: 0,
    steps: 0,
    busyMs: 0,
    verifiedRows: 0,
    sequenceSteps: 0,
    outputTokens: 0,
    lastTokenMs: 0,
  };
  readonly #speculation: Speculation | null;
  readonly #events: EngineEvents;
  /** First come, first served; a preempted run goes to the front. */
  readonly #waiting: Run[] = [];
  readonly #parked = new Map<RequestId, number>();
  #parkedTokens = 0;
  #kvUsed = 0;
  #nowMs = 0;
  /** Prefill still to do: decoding waits for it. */
  #stallMs = 0;
  /** The current stretch: its steps, the time of the next step, and what each step adds to that. */
  #steps = 0;
  #stepMs = 0;
  #growthMs = 0;
  #rows = 0;
  /** Tokens that a step makes. */
  #rate = 0;
  #isStale = false;
  #nextMs = Number.POSITIVE_INFINITY;

  constructor(options: {
    workerId: WorkerId;
    slots: number;
    model: StepModel;
    /** KV budget in tokens; the caller computes how many fit. */
    kvTokens: number;
    speculation: Speculation | null;
    events: EngineEvents;
  }) {
    this.workerId = options.workerId;
    this.slots = options.slots;
    this.model = options.model;
    this.kvTokens = options.kvTokens;
    this.#speculation = options.speculation;
    this.#events = options.events;
  }

  /** Virtual time of the next change without a command; Infinity: none. */
  get nextMs(): number {
    return this.#nextMs;
  }

  get waitingCount(): number {
    return this.#waiting.length;
  }

  /** Tokens of KV held now, by running and parked requests. */
  get kvUsed(): number {
    return this.#kvUsed + this.#parkedTokens;
  }

  /** A chunk to run. `settle` must follow before time advances. */
  submit(run: Run, nowMs: number): void {
    this.advance(nowMs);
    const parked = this.#parked.get(run.request.spec.requestId);
    if (parked !== undefined) {
      this.unpark(run.request.spec.requestId);
      run.kvTokens = parked;
    }
    this.#waiting.push(run);
    this.#isStale = true;
  }

  /** Ends the chunk of a running request, which keeps its KV, parked. null: it is over already. `settle` must follow. */
  interrupt(requestId: RequestId, nowMs: number): Run | null {
    this.advance(nowMs);
    const at = this.running.findIndex((run) => run.request.spec.requestId === requestId);
    const run = this.running[at];
    if (run === undefined || run.left < 1) return null;
    this.running.splice(at, 1);
    // A step under way is lost.
    run.context = Math.floor(run.context + EPSILON);
    run.left = Math.ceil(run.left - EPSILON);
    this.#parked.set(requestId, run.context);
    this.#parkedTokens += run.context;
    this.#isStale = true;
    return run;
  }

  /**
   * It stops to be looked at once it has made `tokens` more, after a step at the earliest. Negative: whatever there
   * was to do about its KV is under way.
   */
  limit(tokens: number): void {
    if (this.running.length === 0 || tokens < 0) return;
    const steps = Math.max(1, tokens / this.#rate);
    if (this.#steps <= steps) return;
    this.#steps = steps;
    this.#schedule();
  }

  /** Forgets the KV of a request that does not run; returns its tokens. */
  unpark(requestId: RequestId): number {
    const tokens = this.#parked.get(requestId) ?? 0;
    this.#parked.delete(requestId);
    this.#parkedTokens -= tokens;
    return tokens;
  }

  /** KV was released from outside: a waiting request may fit. */
  freed(): void {
    this.#isStale = true;
    if (this.#waiting.length > 0) this.settle();
  }

  /** Takes the work to `toMs`, at most to the next change. */
  advance(toMs: number): void {
    let ms = toMs - this.#nowMs;
    this.#nowMs = toMs;
    if (this.running.length === 0 || ms <= 0) return;
    this.counters.busyMs += ms;
    const stall = Math.min(this.#stallMs, ms);
    this.#stallMs -= stall;
    ms -= stall;
    if (ms > 0) this.#progress(Math.min(this.#steps, this.#stepsIn(ms)));
  }

  /** Ends what has ended, makes room, admits, and finds the next change. Call after `advance` or `submit`. */
  settle(): void {
    this.#endChunks();
    if (!this.#isStale && this.#steps > EPSILON) return;
    this.#isStale = false;
    this.#kvUsed = 0;
    for (const run of this.running) this.#kvUsed += run.context;
    const preempted = this.#makeRoom();
    // As in vLLM, a step that had to preempt admits no request.
    if (!preempted) this.#admit();
    this.#plan();
  }

  #endChunks(): void {
    let kept = 0;
    const ended: Run[] = [];
    for (const run of this.running) {
      if (run.left > EPSILON) {
        this.running[kept] = run;
        kept += 1;
      } else {
        ended.push(run);
      }
    }
    if (ended.length === 0) return;
    this.running.length = kept;
    this.#isStale = true;
    this.counters.lastTokenMs = this.#nowMs;
    for (const run of ended) {
      run.context = Math.round(run.context);
      if (!run.isLast) {
        this.#parked.set(run.request.spec.requestId, run.context);
        this.#parkedTokens += run.context;
      }
    }
    for (const run of ended) this.#events.chunkEnded(this, run);
  }

  #makeRoom(): boolean {
    let preempted = false;
    for (;;) {
      let next = 0;
      for (const run of this.running) next += Math.min(run.rate, run.left);
      if (this.kvUsed + next <= this.kvTokens + EPSILON) return preempted;
      const youngest = present(this.running.pop(), "running requests hold the KV");
      assert(this.running.length > 0, "one request fits into the KV");
      this.#kvUsed -= youngest.context;
      // A step under way is lost.
      youngest.context = Math.floor(youngest.context + EPSILON);
      youngest.left = Math.ceil(youngest.left - EPSILON);
      youngest.kvTokens = 0;
      this.#waiting.unshift(youngest);
      this.counters.preemptions += 1;
      preempted = true;
    }
  }

  #admit(): void {
    while (this.running.length < this.slots) {
      const run = this.#waiting[0];
      if (run === undefined || this.kvUsed + run.context + 1 > this.kvTokens) return;
      this.#waiting.shift();
      const missing = run.context - run.kvTokens;
      this.#stallMs += this.model.prefillMs(missing, run.kvTokens);
      this.counters.prefillTokens += missing;
      if (run.position > 0 || run.left < run.tokens) this.counters.recomputedTokens += missing;
      this.#kvUsed += run.context;
      this.running.push(run);
      this.#events.admitted(this, run);
    }
  }

  #plan(): void {
    const batch = this.running.length;
    if (batch === 0) {
      this.#nextMs = Number.POSITIVE_INFINITY;
      return;
    }
    const times = this.model.timesAt(this.#kvUsed / batch);
    let draftMs = 0;
    if (this.#speculation !== null) draftMs = this.#speculation.plan(this.running, times);
    let rows = 0;
    let rate = 0;
    let steps = Number.POSITIVE_INFINITY;
    for (const run of this.running) {
      rows += run.rows;
      rate += run.rate;
      steps = Math.min(steps, run.left / run.rate);
    }
    const room = this.kvTokens - this.kvUsed;
    // The last stretch before KV runs out has less than a step's room; it still takes one step.
    if (steps * rate > room) steps = Math.min(steps, Math.max(1, room / rate));
    this.#rows = rows;
    this.#rate = rate;
    this.#steps = steps;
    this.#stepMs = this.model.stepMs(batch, rows, this.#kvUsed) + draftMs;
    const last = this.model.stepMs(batch, rows, this.#kvUsed + steps * rate) + draftMs;
    this.#growthMs = (last - this.#stepMs) / steps;
    this.#schedule();
  }

  #schedule(): void {
    const ms = this.#steps * this.#stepMs + (this.#growthMs * this.#steps ** 2) / 2;
    this.#nextMs = this.#nowMs + this.#stallMs + ms;
  }

  /** Steps done in `ms`: the root of n t + growth n^2 / 2 = ms. */
  #stepsIn(ms: number): number {
    if (this.#growthMs < 1e-12) return ms / this.#stepMs;
    return (Math.sqrt(this.#stepMs ** 2 + 2 * this.#growthMs * ms) - this.#stepMs) / this.#growthMs;
  }

  #progress(steps: number): void {
    let made = 0;
    for (const run of this.running) {
      const tokens = steps * run.rate;
      run.left -= tokens;
      run.context += tokens;
      made += tokens;
    }
    this.#kvUsed += made;
    this.#steps -= steps;
    this.#stepMs += this.#growthMs * steps;
    this.counters.steps += steps;
    this.counters.outputTokens += made;
    this.counters.verifiedRows += steps * this.#rows;
    this.counters.sequenceSteps += steps * this.running.length;
    // Sums of fractions leave a remainder that would never be worked off.
    if (this.#steps < EPSILON) {
      for (const run of this.running) if (run.left < run.rate * EPSILON) run.left = 0;
    }
    this.#schedule();
  }
}
