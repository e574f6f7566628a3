// One simulated rollout iteration: carries out what the production scheduler decides, on modelled engines, in virtual
// time, through the production executor (the same buffer, context, ledger and commands). It decides neither an
// order nor a place.

import { assert, present } from "../../core/base/assert.ts";
import { groupId, type RequestId, type WorkerId, workerId } from "../../core/base/ids.ts";
import { ContextManager, type LengthPrior } from "../../core/context/context.ts";
import { contextTokens, type Request, RequestBuffer } from "../../core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import { Executor, type ExecutorSteps, type Target } from "../../core/rollout/executor.ts";
import { Ledger } from "../../core/rollout/ledger.ts";
import type { Scheduler } from "../../core/schedule/scheduler.ts";
import { counted, countOnly } from "./counted-response.ts";
import { ModelledEngine, type Run } from "./engine.ts";
import { EnginePort } from "./engine-port.ts";
import type { GroupLengths } from "./lengths.ts";
import { Recorder, type Series } from "./recorder.ts";
import type { Speculation } from "./speculation.ts";
import { StepModel } from "./step-time.ts";
import { Timeline } from "./timeline.ts";
import { engineSlots, type Workload } from "./workload.ts";

/** The scheduler interface that the simulation uses: the production scheduler, or a baseline. */
export type SimScheduler = Pick<
  Scheduler,
  "enqueue" | "refresh" | "unparked" | "isUrgent" | "schedule"
>;

/** What a scheduler may be built from. `lengthOf` is for oracles alone. */
export interface SchedulerParts {
  readonly buffer: RequestBuffer;
  readonly context: ContextManager;
  readonly model: StepModel;
  readonly instances: number;
  readonly lengthOf: (request: Request) => number;
}

export interface SimulationOptions {
  readonly workload: Workload;
  readonly lengths: GroupLengths;
  readonly schedulerFor: (parts: SchedulerParts) => SimScheduler;
  /** null: no drafting. Called once for each engine. */
  readonly speculationFor: ((engine: number) => Speculation) | null;
  /** Chance that the next draft token is accepted, for a request that is about to run. */
  readonly qualityOf: (request: Request) => number;
  /** Number of finished groups at which the simulation stops; null: all. */
  readonly groupsWanted: number | null;
  /** Output tokens that request number i has from an earlier iteration; absent: none. */
  readonly progress: readonly number[] | null;
  /** Keeps time series of every engine, for charts. */
  readonly isRecorded: boolean;
  /** As the executor takes it; default: the production value. */
  readonly pullGapTokens?: number;
  /** Of groups whose prompt has a history; default: none has. */
  readonly lengthPrior?: LengthPrior;
  /** false: all engines count as equally fast; default: as measured. */
  readonly isPaced?: boolean;
}

/** Times in seconds. */
export interface SimulationResult {
  readonly wallS: number;
  /** From the end of the first 90 % of requests to the end of all (paper, Fig. 8). */
  readonly tailS: number;
  readonly outputTokens: number;
  readonly preemptions: number;
  readonly recomputedTokens: number;
  readonly chunks: number;
  readonly migrations: number;
  readonly migratedBytes: number;
  readonly poolBytesPeak: number;
  /** Mean over instances of the time between their last token and the end, over the wall time. */
  readonly idleShare: number;
  /** Between the first and the last instance to run out of work, over the wall time. */
  readonly finishSpread: number;
  /** When the 5 % of requests that end last had begun, on average, over the wall time. */
  readonly lateStartShare: number;
  readonly tokensPerStep: number;
  /** Output tokens of each request, by number; unfinished ones too. */
  readonly reached: readonly number[];
  readonly finishedGroups: number;
  readonly finishedLengths: readonly number[];
  readonly series: Series | null;
}

type Due =
  | { kind: "departed"; request: Request; from: WorkerId; tokens: number }
  | { kind: "loaded"; request: Request; target: Target; kvTokens: number }
  | { kind: "progress" };

/** Tail: the last 10 % of requests (paper, Fig. 8). */
const TAIL_SHARE = 0.1;
/** The paper gives the time at which the last 5 % began. */
const LAST_SHARE = 0.05;
/** How often running lengths reach the context between the ends of chunks. */
const PROGRESS_MS = 30_000;

export class Simulation implements ExecutorSteps {
  readonly #options: SimulationOptions;
  readonly #buffer = new RequestBuffer();
  readonly #context: ContextManager;
  readonly #ledger = new Ledger(() => this.#nowMs);
  readonly #scheduler: SimScheduler;
  readonly #model: StepModel;
  readonly #engines: ModelledEngine[] = [];
  readonly #timeline = new Timeline<Due>();
  readonly #lengths: Int32Array;
  readonly #executor: Executor;
  /** Engines that were given work since they were last settled. */
  readonly #touched = new Set<ModelledEngine>();
  readonly #pooled = new Map<RequestId, number>();
  /** Output tokens of each engine that the ledger knows of. */
  readonly #accounted: number[] = [];
  readonly #linkFreeMs: Float64Array;
  readonly #recorder: Recorder | null;
  readonly #startedMs: number[] = [];
  readonly #finishedMs: number[] = [];
  readonly #finishedStartMs: number[] = [];
  readonly #finishedLengths: number[] = [];
  #nowMs = 0;
  #poolTokens = 0;
  #poolTokensPeak = 0;
  #migratedTokens = 0;
  #migrations = 0;
  #chunks = 0;
  #finishedGroups = 0;
  #progressIsDue = false;

  constructor(options: SimulationOptions) {
    const { workload, lengths } = options;
    this.#options = options;
    this.#model = new StepModel(workload);
    this.#context = new ContextManager(options.lengthPrior);
    this.#executor = new Executor(this.#ledger, this, options.pullGapTokens);
    this.#lengths = Int32Array.from(lengths.flat());
    this.#linkFreeMs = new Float64Array(workload.instances);
    this.#recorder = options.isRecorded ? new Recorder(workload.instances) : null;
    this.#scheduler = options.schedulerFor({
      buffer: this.#buffer,
      context: this.#context,
      model: this.#model,
      instances: workload.instances,
      lengthOf: (request) => this.#lengthOf(request),
    });
    this.#addGroups();
    this.#addEngines();
  }

  run(): SimulationResult {
    for (const request of this.#buffer.requests) {
      if (request.response.length < this.#lengthOf(request)) this.#scheduler.enqueue(request);
    }
    this.#pump();
    while (!this.#isDone) this.#turn();
    return this.#result();
  }

  get #isDone(): boolean {
    const { groupsWanted } = this.#options;
    if (groupsWanted !== null && this.#finishedGroups >= groupsWanted) return true;
    return this.#buffer.unfinished === 0;
  }

  #addGroups(): void {
    const { workload, lengths, progress } = this.#options;
    const prompt = new Int32Array(workload.promptTokens);
    const sampling = {
      temperature: 1,
      seed: 0,
      tokensMax: workload.shape.tokensMax,
      stopTokenIds: [],
      ...SAMPLING_DEFAULTS,
    };
    for (const [index, members] of lengths.entries()) {
      const id = groupId(`g${index}`);
      const group = this.#buffer.add({ groupId: id, prompt, size: members.length, sampling });
      for (const request of group.requests) {
        countOnly(request);
        this.#context.joined(request);
        const reached = progress?.[request.index] ?? 0;
        if (reached > 0) counted(request).reach(reached);
      }
    }
  }

  #addEngines(): void {
    const { workload, speculationFor } = this.#options;
    const { slow, constants } = workload;
    const slowdown = constants.slowdown * (slow?.factor ?? 1);
    const slowModel = new StepModel({ ...workload, constants: { ...constants, slowdown } });
    const contextMax = workload.promptTokens + workload.shape.tokensMax;
    assert(contextMax < this.#model.kvTokens, "the longest request fits into one engine");
    for (let i = 0; i < workload.instances; i += 1) {
      const engine = new ModelledEngine({
        workerId: workerId(i),
        slots: engineSlots(workload.deployment),
        model: i < (slow?.instances ?? 0) ? slowModel : this.#model,
        kvTokens: this.#model.kvTokens,
        speculation: speculationFor === null ? null : speculationFor(i),
        events: this,
      });
      this.#engines.push(engine);
      this.#ledger.add(new EnginePort(engine, contextMax));
    }
  }

  #turn(): void {
    let atMs = this.#timeline.nextMs;
    for (const engine of this.#engines) atMs = Math.min(atMs, engine.nextMs);
    assert(Number.isFinite(atMs), "work is left, so something is due");
    this.#nowMs = atMs;
    for (const engine of this.#engines) {
      if (engine.nextMs > atMs) continue;
      engine.advance(atMs);
      engine.settle();
      this.#account(engine);
      this.#recorder?.sample(atMs, engine);
    }
    while (this.#timeline.nextMs <= atMs) {
      const due = this.#timeline.take();
      if (due !== null) this.#take(due);
    }
    this.#pump();
  }

  #take(due: Due): void {
    switch (due.kind) {
      case "departed":
        this.#departed(due.request, due.from, due.tokens);
        break;
      case "loaded":
        this.#launch(due.request, due.target, due.kvTokens);
        break;
      case "progress":
        this.#progressIsDue = false;
        this.#observeProgress();
        break;
    }
    this.#settle();
  }

  #pump(): void {
    if (this.#isDone) return;
    for (const command of this.#scheduler.schedule(this.#ledger.slots())) {
      assert(command.kind !== "reject", "the longest request fits into one engine");
      this.#executor.execute(command);
    }
    this.#settle();
    for (const engine of this.#engines) engine.limit(this.#ledger.spareTokens(engine.workerId));
    if (this.#progressIsDue) return;
    this.#progressIsDue = true;
    this.#timeline.add(this.#nowMs + PROGRESS_MS, { kind: "progress" });
  }

  #settle(): void {
    for (const engine of this.#touched) {
      engine.settle();
      this.#account(engine);
      this.#recorder?.sample(this.#nowMs, engine);
    }
    this.#touched.clear();
  }

  migrated(): void {
    this.#migrations += 1;
  }

  depart(request: Request, from: WorkerId, tokens: number): void {
    const atMs = this.#transfer(from, tokens);
    this.#timeline.add(atMs, { kind: "departed", request, from, tokens });
  }

  preempt(request: Request, from: WorkerId): void {
    const engine = this.#engine(from);
    const run = engine.interrupt(request.spec.requestId, this.#nowMs);
    // It ends with this very step.
    if (run === null) return;
    this.#touched.add(engine);
    this.#chunkDone(request, run.position + run.tokens - run.left);
    this.#scheduler.unparked(request);
    this.#executor.execute({ kind: "offload", request, workerId: from });
  }

  drop({ spec: { requestId } }: Request, from: WorkerId): void {
    const engine = this.#engine(from);
    engine.advance(this.#nowMs);
    engine.unpark(requestId);
    engine.freed();
    this.#touched.add(engine);
  }

  pooledTokens({ spec: { requestId } }: Request): number {
    return this.#pooled.get(requestId) ?? 0;
  }

  load(request: Request, target: Target): void {
    const kvTokens = this.#pooled.get(request.spec.requestId);
    if (kvTokens === undefined) {
      this.#launch(request, target, 0);
      return;
    }
    if (request.workerId !== target.workerId) this.#migratedTokens += kvTokens;
    const atMs = this.#transfer(target.workerId, kvTokens);
    this.#timeline.add(atMs, { kind: "loaded", request, target, kvTokens });
  }

  begin(request: Request, target: Target): void {
    this.#launch(request, target, 0);
  }

  /** When a transfer of `tokens` over the instance's link ends, if it starts as soon as the link is free. */
  #transfer(id: WorkerId, tokens: number): number {
    const startMs = Math.max(this.#nowMs, this.#linkFreeMs[id] ?? 0);
    const endMs = startMs + this.#model.transferMs(tokens);
    this.#linkFreeMs[id] = endMs;
    return endMs;
  }

  #departed(request: Request, from: WorkerId, tokens: number): void {
    const { requestId } = request.spec;
    const engine = this.#engine(from);
    engine.advance(this.#nowMs);
    engine.unpark(requestId);
    engine.freed();
    const departure = present(this.#executor.departed(requestId), "its KV was leaving");
    this.#poolTokens += tokens - (this.#pooled.get(requestId) ?? 0);
    this.#poolTokensPeak = Math.max(this.#poolTokensPeak, this.#poolTokens);
    this.#pooled.set(requestId, tokens);
    if (departure.target !== null) this.load(request, departure.target);
  }

  #launch(request: Request, target: Target, kvTokens: number): void {
    this.#executor.start(request, target);
    this.#submit(request, target, kvTokens);
  }

  #submit(request: Request, to: Target, kvTokens: number): void {
    this.#chunks += 1;
    const position = request.response.length;
    const left = this.#lengthOf(request) - position;
    const tokens = Math.min(left, to.chunkTokens);
    const engine = this.#engine(to.workerId);
    const run: Run = {
      request,
      position,
      tokens,
      isLast: tokens === left,
      context: contextTokens(request),
      kvTokens,
      left: tokens,
      quality: this.#options.speculationFor === null ? 0 : this.#options.qualityOf(request),
      isUrgent: this.#scheduler.isUrgent(request),
      rate: 1,
      rows: 1,
    };
    engine.submit(run, this.#nowMs);
    this.#touched.add(engine);
  }

  /** From an engine: a chunk begins, or continues after a preemption. */
  admitted(_engine: ModelledEngine, run: Run): void {
    this.#startedMs[run.request.index] ??= this.#nowMs;
  }

  /** From an engine: a chunk is over. */
  chunkEnded(_engine: ModelledEngine, run: Run): void {
    const { request } = run;
    if (!run.isLast) {
      this.#chunkDone(request, run.position + run.tokens);
      return;
    }
    counted(request).reach(run.position + run.tokens);
    this.#executor.release(request);
    request.response.finish = "stop";
    const isGroupDone = this.#buffer.finish(request);
    if (isGroupDone) this.#finishedGroups += 1;
    this.#context.finished(request);
    this.#scheduler.refresh(request.group);
    this.#poolTokens -= this.#pooled.get(request.spec.requestId) ?? 0;
    this.#pooled.delete(request.spec.requestId);
    this.#finishedMs.push(this.#nowMs);
    this.#finishedStartMs.push(this.#startedMs[request.index] ?? 0);
    this.#finishedLengths.push(request.response.length);
  }

  /** The response goes on; it has `reached` output tokens. */
  #chunkDone(request: Request, reached: number): void {
    counted(request).reach(reached);
    this.#executor.parked(request);
    this.#context.progressed(request);
    this.#scheduler.refresh(request.group);
    this.#scheduler.enqueue(request);
  }

  /** What the engine has now, as the tokens that stream in production tell it. */
  #account(engine: ModelledEngine): void {
    const { workerId, counters } = engine;
    const before = this.#accounted[workerId] ?? 0;
    this.#ledger.made(workerId, counters.outputTokens - before);
    this.#accounted[workerId] = counters.outputTokens;
    this.#ledger.preempted(workerId, counters.preemptions);
    if (this.#options.isPaced ?? true) {
      this.#ledger.counted(workerId, {
        outputTokens: counters.outputTokens,
        acceptedTokens: counters.outputTokens - counters.sequenceSteps,
        draftedTokens: counters.verifiedRows - counters.sequenceSteps,
      });
    }
    for (const run of engine.running) this.#executor.reached(run.request, Math.ceil(run.context));
    engine.limit(this.#ledger.spareTokens(workerId));
  }

  /** Tokens stream in production; here they are looked at now and then. */
  #observeProgress(): void {
    for (const engine of this.#engines) {
      if (engine.running.length === 0) continue;
      engine.advance(this.#nowMs);
      for (const run of engine.running) {
        const reached = run.position + Math.floor(run.tokens - run.left);
        if (reached <= run.request.response.length) continue;
        counted(run.request).reach(reached);
        if (this.#options.speculationFor !== null)
          run.quality = this.#options.qualityOf(run.request);
        this.#context.progressed(run.request);
        this.#scheduler.refresh(run.request.group);
      }
      this.#recorder?.sample(this.#nowMs, engine);
    }
  }

  #engine(id: WorkerId): ModelledEngine {
    return present(this.#engines[id], `engine ${id} exists`);
  }

  #lengthOf(request: Request): number {
    return this.#lengths[request.index] ?? 0;
  }

  #result(): SimulationResult {
    const wallMs = this.#nowMs;
    const finished = this.#finishedMs;
    const tailFrom = finished[finished.length - Math.ceil(finished.length * TAIL_SHARE) - 1] ?? 0;
    const ends = this.#engines.map((engine) => engine.counters.lastTokenMs);
    const last = this.#finishedStartMs.slice(Math.floor(finished.length * (1 - LAST_SHARE)));
    const sum = (value: (engine: ModelledEngine) => number) =>
      this.#engines.reduce((total, engine) => total + value(engine), 0);
    const outputTokens = sum((engine) => engine.counters.outputTokens);
    const running = sum((engine) => engine.counters.sequenceSteps);
    return {
      wallS: wallMs / 1000,
      tailS: (wallMs - tailFrom) / 1000,
      outputTokens,
      preemptions: sum((engine) => engine.counters.preemptions),
      recomputedTokens: sum((engine) => engine.counters.recomputedTokens),
      chunks: this.#chunks,
      migrations: this.#migrations,
      migratedBytes: this.#migratedTokens * this.#model.kvBytesPerToken,
      poolBytesPeak: this.#poolTokensPeak * this.#model.kvBytesPerToken,
      idleShare: (wallMs - meanOf(ends)) / wallMs,
      finishSpread: (Math.max(...ends) - Math.min(...ends)) / wallMs,
      lateStartShare: meanOf(last) / wallMs,
      tokensPerStep: outputTokens / Math.max(1, running),
      reached: [...this.#buffer.requests].map((request) => request.response.length),
      finishedGroups: this.#finishedGroups,
      finishedLengths: this.#finishedLengths,
      series: this.#recorder?.series ?? null,
    };
  }
}

function meanOf(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / Math.max(1, values.length);
}
