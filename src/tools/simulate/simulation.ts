// One simulated rollout iteration: the production rollout, whole, over modelled engines in virtual time. It has a clock,
// the lengths of responses and the KV that engines share; everything else is the rollout's or an engine's.

import { assert, present } from "../../core/base/assert.ts";
import {
  groupId,
  type RequestId,
  type WorkerId,
  weightEpoch,
  workerId,
} from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import { isCut, SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import type { RolloutListener } from "../../core/rollout/listener.ts";
import { Rollout } from "../../core/rollout/rollout.ts";
import { endRest, firstComplete } from "../../core/rollout/selection.ts";
import type { Timeline } from "../../core/rollout/timeline.ts";
import type { PolicyParts } from "../../core/schedule/policies.ts";
import type { Scheduler } from "../../core/schedule/scheduler.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { countOnly, tokensOf } from "./counted-response.ts";
import { type EngineWorld, SimulatedEngine } from "./engine.ts";
import type { GroupLengths } from "./lengths.ts";
import type { Speculation } from "./speculation.ts";
import { StepModel } from "./step-time.ts";
import { engineSlots, type Workload } from "./workload.ts";

/** Objects that a scheduler may be built from. `lengthOf` is for oracles alone. */
export interface SchedulerParts extends PolicyParts {
  readonly lengthOf: (request: Request) => number;
  /** Data-parallel ranks of an engine. */
  readonly ranks: number;
}

/** A pool whose engines leave one after the other, each to be replaced; times in seconds. */
export interface Elastic {
  /** Time that an engine serves on average. */
  readonly lifeS: number;
  /** Between a notice and the end of the engine that gets it; 0: it is gone at once. */
  readonly noticeS: number;
  /** Between the end of an engine and the first request of the next. */
  readonly absentS: number;
}

export interface SimulationOptions {
  readonly workload: Workload;
  readonly lengths: GroupLengths;
  readonly core: CoreExports;
  readonly chunkTokens: number;
  /** Whether requests are divided into chunks; false: they run in one piece. */
  readonly isDivided: boolean;
  readonly schedulerFor: (parts: SchedulerParts) => Scheduler;
  /** null: no drafting. Called once for each engine. */
  readonly speculationFor: ((engine: number) => Speculation) | null;
  /** Chance that the next draft token of the request is accepted. */
  readonly qualityOf: (requestId: RequestId, reached: Reached) => number;
  /** Whether the simulation stops, which is asked with what is finished and what is not; null: at the end of all. */
  readonly until:
    | ((at: { readonly groups: number; readonly unfinished: number }) => boolean)
    | null;
  /** Responses of each group after which the others are given up; null: all are wanted. */
  readonly finishFirst: number | null;
  /** Output tokens that request number i has from an earlier iteration; absent: none. */
  readonly progress: readonly number[] | null;
  /** null: all engines stay. */
  readonly elastic: Elastic | null;
  /** false: all engines count as equally fast; default: as measured. */
  readonly isPaced?: boolean;
  /** Keeps the load of every engine over time, for charts. */
  readonly isRecorded: boolean;
}

/** Output tokens that the rollout has of each request. Requests of a group have consecutive ids. */
export interface Reached {
  readonly tokens: Int32Array;
  /** First id of each request's group, and the one after its last. */
  readonly from: Int32Array;
  readonly to: Int32Array;
}

/** Times in seconds. */
export interface SimulationResult {
  readonly wallS: number;
  /** From the end of the first 90 % of requests to the end of all (paper, Fig. 8). */
  readonly tailS: number;
  /** Time of all engines that were there. */
  readonly engineS: number;
  /** Wall time of the same requests if no engine left; null: none did. */
  readonly calmS: number | null;
  readonly outputTokens: number;
  readonly preemptions: number;
  readonly recomputedTokens: number;
  readonly chunks: number;
  readonly migrations: number;
  readonly migratedBytes: number;
  /** Mean over instances of the time between their last token and the end, over the wall time. */
  readonly idleShare: number;
  /** Between the first and the last instance to run out of work, over the wall time. */
  readonly finishSpread: number;
  /** When the 5 % of requests that end last had begun, on average, over the wall time. */
  readonly lateStartShare: number;
  readonly tokensPerStep: number;
  /** Output tokens of each request, by number; unfinished ones too. */
  readonly reached: readonly number[];
  /** Lengths of the responses that are handed out: those of whole groups, or the first of each. */
  readonly returnedLengths: readonly number[];
  /** The same of earlier iterations as well, where those are not alike; null: they are. */
  readonly biasLengths: readonly number[] | null;
  /** Part of the tokens of `returnedLengths` that an earlier iteration made. */
  readonly staleShare: number;
  /** Iterations that its figures are the mean of. */
  readonly iterations: number;
  /** Time in which all instances could have begun to train, for which the rollout did not need them. */
  readonly freeS: number;
  /** The chunks, and the load of each engine over time; null: not recorded. */
  readonly timeline: Timeline | null;
  /** The rollout's estimates of the time left; none if not recorded. */
  readonly timeLeft: readonly { readonly atS: number; readonly leftS: number }[];
}

/** The paper gives the time at which the last 5 % began. */
const LAST_SHARE = 0.05;
const EPOCH = weightEpoch(0);
/** Between two records. */
const RECORD_S = 10;
/**
 * Tokens that a running request gains at most before the rollout knows of them: a small part of what it reserves ahead
 * (`schedule/lookahead.ts`), so that admission knows how much KV is free.
 */
const REPORT_TOKENS = 192;
const REPORT_PART = 1 / 2048;

export class Simulation implements EngineWorld {
  readonly #options: SimulationOptions;
  readonly #model: StepModel;
  readonly #rollout: Rollout;
  readonly #engines: SimulatedEngine[] = [];
  /** Engines that are there, in order of arrival; and what happens to them next. */
  readonly #serving: SimulatedEngine[] = [];
  readonly #changes: { readonly atMs: number; readonly act: () => void }[] = [];
  #engineMs = 0;
  /** Engines that have got their notice: the first ones of `#serving`. */
  #leaving = 0;
  readonly #requests: Request[] = [];
  readonly #lengths: Int32Array;
  readonly #reached: Reached;
  /** KV in the pool that the engines share. */
  readonly #kv = new Map<RequestId, { readonly tokens: number; readonly from: WorkerId }>();
  readonly #startedMs: number[] = [];
  readonly #finished: Request[] = [];
  #nowMs = 0;
  #migratedTokens = 0;
  #finishedGroups = 0;
  readonly #returnedLengths: number[] = [];
  #error: unknown = null;
  readonly #timeLeft: { atS: number; leftS: number }[] = [];

  constructor(options: SimulationOptions) {
    const { core, chunkTokens, lengths, schedulerFor } = options;
    this.#options = options;
    this.#model = new StepModel(options.workload);
    this.#lengths = Int32Array.from(lengths.flat());
    const numbers = () => new Int32Array(this.#lengths.length);
    this.#reached = { tokens: numbers(), from: numbers(), to: numbers() };
    const lengthOf = ({ spec }: Request) => this.lengthOf(spec.requestId);
    this.#rollout = new Rollout({
      policy: "divided",
      schedulerFor: (parts) => schedulerFor({ ...parts, lengthOf, ranks: this.#model.ranks }),
      draft: "off",
      chunkTokens,
      epoch: EPOCH,
      // Engines move KV by themselves.
      pool: new EmbeddedKvPool({ clock: this, memoryBytesMax: 0, disk: null }),
      clock: this,
      core,
      listener: this.#listener(),
    });
    this.#addGroups();
    const { workload, elastic } = options;
    for (let i = 0; i < workload.instances; i += 1) this.#addEngine();
    if (elastic !== null) this.#expectNotice(elastic);
  }

  async run(): Promise<SimulationResult> {
    while (!this.#isDone) {
      // The rollout's turn, which it takes as a microtask, and one for what was given up in it.
      await null;
      await null;
      if (this.#error !== null) throw this.#error;
      // The rollout has none as long as no engine says anything.
      while (!this.#isTurn() && !this.#moveOn() && !this.#isDone);
    }
    for (const engine of this.#serving) engine.flush();
    this.#rollout.stop();
    return this.#result();
  }

  /** Performs what is due at the engines. true: the rollout got events. */
  #isTurn(): boolean {
    let isTurn = false;
    for (const engine of this.#serving) {
      if (engine.quietMs <= this.#nowMs && engine.turn()) isTurn = true;
    }
    return isTurn;
  }

  /** Takes the time to the next change. true: that was one of the engines that are there. */
  #moveOn(): boolean {
    const changeMs = this.#changes.at(0)?.atMs ?? Number.POSITIVE_INFINITY;
    let atMs = changeMs;
    for (const engine of this.#serving) {
      const { quietMs } = engine;
      atMs = Math.min(atMs, quietMs === Number.NEGATIVE_INFINITY ? engine.nextMs : quietMs);
    }
    assert(Number.isFinite(atMs), "work is left, so something is due");
    this.#engineMs += (atMs - this.#nowMs) * this.#serving.length;
    this.#nowMs = atMs;
    const isChange = changeMs === atMs;
    if (isChange) this.#changes.shift()?.act();
    if (this.#options.isRecorded) this.#record();
    return isChange;
  }

  #record(): void {
    const atS = this.#nowMs / 1000;
    if (atS < (this.#timeLeft.at(-1)?.atS ?? 0) + RECORD_S) return;
    const leftS = this.#rollout.meter.progress().etaS;
    if (leftS !== null) this.#timeLeft.push({ atS, leftS });
  }

  nowMs(): number {
    return this.#nowMs;
  }

  lengthOf(requestId: RequestId): number {
    return present(this.#lengths[requestId], "request ids count from zero");
  }

  qualityOf(requestId: RequestId): number {
    return this.#options.qualityOf(requestId, this.#reached);
  }

  admitted(requestId: RequestId): void {
    this.#startedMs[requestId] ??= this.#nowMs;
  }

  stored(requestId: RequestId, tokens: number, from: WorkerId): void {
    this.#kv.set(requestId, { tokens, from });
  }

  loading(requestId: RequestId, to: WorkerId): number {
    const { tokens = 0, from = to } = this.#kv.get(requestId) ?? {};
    if (from !== to) this.#migratedTokens += tokens;
    return tokens;
  }

  get #isDone(): boolean {
    const { unfinished } = this.#rollout;
    return (
      unfinished === 0 ||
      this.#options.until?.({ groups: this.#finishedGroups, unfinished }) === true
    );
  }

  #listener(): RolloutListener {
    const hasDrafts = this.#options.speculationFor !== null;
    return {
      tokens: ({ spec, response }) => {
        // Read by drafts alone; without them no batch fetches the specification from memory.
        if (hasDrafts) this.#reached.tokens[spec.requestId] = response.length;
      },
      finished: (request) => this.#ended(request),
      groupFinished: ({ requests }) => {
        this.#finishedGroups += 1;
        const { finishFirst } = this.#options;
        const taken = finishFirst === null ? requests : firstComplete(requests, finishFirst);
        this.#returnedLengths.push(...taken.map(({ response }) => response.length));
      },
      restarted() {},
      stats() {},
      workerFailed: (_worker, message) => assert(false, message),
      quarantined() {},
      threw: (error) => this.#broke(error),
      broken: (error) => this.#broke(error),
    };
  }

  #broke(error: unknown): void {
    this.#error ??= error;
  }

  #ended(request: Request): void {
    const { requestId } = request.spec;
    assert(request.response.refusal === null, "the longest request fits into one engine");
    if (!isCut(request.response.finish)) this.#finished.push(request);
    const { finishFirst } = this.#options;
    if (finishFirst !== null) endRest(this.#rollout, request.group.requests, finishFirst);
    this.#kv.delete(requestId);
  }

  #addGroups(): void {
    const { workload, lengths, progress } = this.#options;
    const prompt = new Int32Array(workload.promptTokens);
    const { tokensMax } = workload.shape;
    const drawn = { temperature: 1, seed: 0, tokensMax, stopTokenIds: [] };
    const sampling = { ...drawn, ...SAMPLING_DEFAULTS };
    for (const [index, { length: size }] of lengths.entries()) {
      const id = groupId(`g${index}`);
      const from = this.#requests.length;
      this.#reached.from.fill(from, from, from + size);
      this.#reached.to.fill(from + size, from, from + size);
      for (const request of this.#rollout.submit({ groupId: id, prompt, size, sampling })
        .requests) {
        this.#requests.push(request);
        countOnly(request);
      }
    }
    for (const [index, tokens] of progress?.entries() ?? []) {
      if (tokens > 0) this.#restore(present(this.#requests[index], "one for each"), tokens);
    }
  }

  /** The request has `reached` tokens from an earlier iteration. */
  #restore(request: Request, reached: number): void {
    const { requestId } = request.spec;
    this.#reached.tokens[requestId] = reached;
    const chunk = { workerId: workerId(0), epoch: EPOCH, weights: null, offset: 0 };
    this.#rollout.restore(request, {
      ...tokensOf(reached),
      top: null,
      chunks: [{ ...chunk, tokens: reached }],
      finish: reached === this.lengthOf(requestId) ? "stop" : null,
      refusal: null,
    });
  }

  #after(seconds: number, act: () => void): void {
    this.#changes.push({ atMs: this.#nowMs + seconds * 1000, act });
    this.#changes.sort((a, b) => a.atMs - b.atMs);
  }

  /** The engine that has been there longest is the next to leave. */
  #expectNotice(elastic: Elastic): void {
    const { lifeS, noticeS, absentS } = elastic;
    this.#after(lifeS / this.#options.workload.instances, () => {
      this.#expectNotice(elastic);
      const engine = this.#serving[this.#leaving];
      if (engine === undefined || this.#serving.length === 1) return;
      if (noticeS > 0) this.#rollout.setReachable(engine, true, true);
      this.#leaving += 1;
      this.#after(noticeS, () => {
        this.#leaving -= 1;
        this.#serving.shift();
        this.#rollout.removeWorker(engine);
        this.#rollout.forgetWorker(engine.workerId);
        this.#after(absentS, () => this.#addEngine());
      });
    });
  }

  #addEngine(): void {
    const { workload, speculationFor, isDivided, isPaced = true } = this.#options;
    const { slow, constants } = workload;
    const i = this.#engines.length;
    const slowdown = constants.slowdown * (i < (slow?.instances ?? 0) ? (slow?.factor ?? 1) : 1);
    const contextTokens = workload.promptTokens + workload.shape.tokensMax;
    const { kvTokens } = this.#model;
    assert(contextTokens < kvTokens, "the longest request fits into one engine");
    const reportTokens = Math.max(1, Math.min(REPORT_TOKENS, kvTokens * REPORT_PART));
    const engine = new SimulatedEngine({
      workerId: workerId(i),
      slots: engineSlots(workload.deployment),
      model: new StepModel({ ...workload, constants: { ...constants, slowdown } }),
      contextTokens,
      kvTokens,
      speculation: speculationFor?.(i) ?? null,
      world: this,
      reportTokens: isDivided ? reportTokens : Number.POSITIVE_INFINITY,
      isPaced,
    });
    this.#engines.push(engine);
    this.#serving.push(engine);
    this.#rollout.addWorker(engine);
  }

  #result(): SimulationResult {
    const wallMs = this.#nowMs;
    const { meter } = this.#rollout;
    const { tailS, figures } = present(meter.endIteration(), "an iteration ran");
    const ends = this.#engines.map((engine) => engine.counters.lastTokenMs);
    const finished = this.#finished;
    const last = finished.slice(Math.floor(finished.length * (1 - LAST_SHARE)));
    const sum = (key: keyof SimulatedEngine["counters"]) =>
      this.#engines.reduce((total, engine) => total + engine.counters[key], 0);
    const outputTokens = sum("outputTokens");
    return {
      wallS: wallMs / 1000,
      tailS,
      engineS: this.#engineMs / 1000,
      calmS: null,
      outputTokens,
      preemptions: sum("preemptions"),
      recomputedTokens: sum("recomputedTokens"),
      chunks: figures.chunks,
      migrations: figures.migrations,
      migratedBytes: this.#migratedTokens * this.#model.kvBytesPerToken,
      idleShare: (wallMs - meanOf(ends)) / wallMs,
      finishSpread: (Math.max(...ends) - Math.min(...ends)) / wallMs,
      lateStartShare: meanOf(last.map(({ spec }) => this.#startedMs[spec.requestId] ?? 0)) / wallMs,
      tokensPerStep: outputTokens / Math.max(1, sum("sequenceSteps")),
      reached: this.#requests.map(({ response }) => response.length),
      returnedLengths: this.#returnedLengths,
      iterations: 1,
      freeS: 0,
      biasLengths: null,
      staleShare: 0,
      timeLeft: this.#timeLeft,
      timeline: this.#options.isRecorded ? meter.timeline() : null,
    };
  }
}

export function meanOf(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / Math.max(1, values.length);
}
