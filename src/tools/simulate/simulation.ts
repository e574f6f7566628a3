// One simulated iteration: the production rollout, whole, over modelled engines in virtual time. It has the clock, the
// lengths of responses and the KV that engines share; everything else is the rollout's or an engine's.

import { assert, present } from "../../core/base/assert.ts";
import {
  groupId,
  type RequestId,
  type WorkerId,
  weightEpoch,
  workerId,
} from "../../core/base/ids.ts";
import type { Group, RolloutRequest } from "../../core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import type { RolloutReader } from "../../core/rollout/events.ts";
import { Rollout } from "../../core/rollout/rollout.ts";
import type { PolicyParts } from "../../core/schedule/policies.ts";
import type { Scheduler } from "../../core/schedule/scheduler.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { countOnly } from "./counted-response.ts";
import { type EngineModel, type EngineWorld, SimulatedEngine } from "./engine.ts";

/** A group: one prompt, and the number of output tokens of each response. */
export interface GroupModel {
  readonly promptTokens: number;
  readonly lengths: readonly number[];
  /** Time of its arrival, in ms. */
  readonly atMs: number;
}

export interface SimulationOptions {
  readonly groups: readonly GroupModel[];
  readonly engines: readonly EngineModel[];
  /** Limit of a response's output tokens, as the scheduler knows it. */
  readonly tokensMax: number;
  readonly core: CoreExports;
  /** Limit of a chunk's tokens; null: chosen as in production. */
  readonly chunkTokens: number | null;
  /** Whether tokens are reported during a chunk; false: at its end, which is faster where no decision depends on them. */
  readonly reportsTokens: boolean;
  readonly schedulerFor: (parts: PolicyParts) => Scheduler;
  /** Whether KV moves between engines; false: KV that leaves an engine is lost, and recomputed on the next. */
  readonly movesKv: boolean;
  /** Whether engines have paces; false: all count as equally fast. */
  readonly isPaced: boolean;
}

/** Results of a simulated iteration; times in seconds. */
export interface SimulationFigures {
  readonly wallS: number;
  /** Time from the end of the first 90 % of requests to the end of all (paper, Fig. 8). */
  readonly tailS: number;
  /** Mean over engines of the time between their last token and the end, over the wall time. */
  readonly idleShare: number;
  readonly outputTokens: number;
  readonly preemptions: number;
  readonly recomputedTokens: number;
  readonly chunks: number;
  readonly migrations: number;
  readonly migratedTokens: number;
  readonly tokensPerStep: number;
}

export const EPOCH = weightEpoch(0);
/**
 * Tokens that a running request gains at most before the rollout knows of them: a small part of what it reserves ahead
 * (`schedule/lookahead.ts`), so that admission knows how much KV is free.
 */
const REPORT_TOKENS = 192;
const REPORT_PART = 1 / 2048;

export class Simulation implements EngineWorld {
  readonly rollout: Rollout;
  readonly requests: RolloutRequest[] = [];
  /** All engines that were ever added. */
  readonly engines: SimulatedEngine[] = [];
  /** Current engines, in the order of their arrival. */
  protected readonly serving: SimulatedEngine[] = [];
  readonly #options: SimulationOptions;
  readonly #contextTokens: number;
  readonly #lengths: Int32Array;
  /** Arrivals of groups and other changes to come. */
  readonly #changes: { readonly atMs: number; readonly act: () => void }[] = [];
  #groupsToCome: number;
  /** KV in the shared pool. */
  readonly #kv = new Map<RequestId, { readonly tokens: number; readonly from: WorkerId }>();
  #nowMs = 0;
  #migratedTokens = 0;
  #error: unknown = null;

  constructor(options: SimulationOptions) {
    const { core, chunkTokens, groups, tokensMax, schedulerFor } = options;
    this.#options = options;
    this.#lengths = Int32Array.from(groups.flatMap(({ lengths }) => lengths));
    this.#contextTokens = tokensMax + Math.max(...groups.map(({ promptTokens }) => promptTokens));
    this.#groupsToCome = groups.length;
    this.rollout = new Rollout({
      policy: "divided",
      schedulerFor,
      draft: "off",
      chunkTokens,
      epoch: EPOCH,
      // Engines move KV by themselves.
      pool: new EmbeddedKvPool({ memoryBytesMax: 0, disk: null }),
      clock: this,
      core,
      listener: this.#listener(),
    });
    this.#addGroups();
    for (const engine of options.engines) this.addEngine(engine);
  }

  async run(): Promise<void> {
    while (!this.isOver) {
      // The rollout's turn, which it takes as a microtask, and one for what was given up in it.
      await null;
      await null;
      if (this.#error !== null) throw this.#error;
      // The rollout has none as long as no engine says anything.
      while (!this.#isTurn() && !this.#moveOn() && !this.isOver);
    }
    for (const engine of this.serving) engine.flush();
    this.rollout.stop();
  }

  /** The results of the run; call it once, when the run is over. */
  figures(): SimulationFigures {
    const wallMs = this.#nowMs;
    const { tailS, figures } = present(this.rollout.meter.endIteration(), "an iteration ran");
    const ends = this.engines.map((engine) => engine.counters.lastTokenMs);
    const sum = (key: keyof SimulatedEngine["counters"]) =>
      this.engines.reduce((total, engine) => total + engine.counters[key], 0);
    const outputTokens = sum("outputTokens");
    return {
      wallS: wallMs / 1000,
      tailS,
      idleShare: (wallMs - meanOf(ends)) / wallMs,
      outputTokens,
      preemptions: sum("preemptions"),
      recomputedTokens: sum("recomputedTokens"),
      chunks: figures.chunks,
      migrations: figures.migrations,
      migratedTokens: this.#migratedTokens,
      tokensPerStep: outputTokens / Math.max(1, sum("sequenceSteps")),
    };
  }

  nowMs(): number {
    return this.#nowMs;
  }

  lengthOf(requestId: RequestId): number {
    return present(this.#lengths[requestId], "request ids count from zero");
  }

  qualityOf(_requestId: RequestId): number {
    return 0;
  }

  admitted(_requestId: RequestId): void {}

  stored(requestId: RequestId, tokens: number, from: WorkerId): void {
    if (this.#options.movesKv) this.#kv.set(requestId, { tokens, from });
  }

  loading(requestId: RequestId, to: WorkerId): number {
    const { tokens = 0, from = to } = this.#kv.get(requestId) ?? {};
    if (from !== to) this.#migratedTokens += tokens;
    return tokens;
  }

  protected get isOver(): boolean {
    return this.rollout.unfinished === 0 && this.#groupsToCome === 0;
  }

  /** Called when the request has received tokens. */
  protected took(_request: RolloutRequest): void {}

  protected groupFinished(_group: Group): void {}

  protected finished({ spec, response }: RolloutRequest): void {
    assert(response.refusal === null, "the longest request fits into one engine");
    this.#kv.delete(spec.requestId);
  }

  /** Called before time advances by this much. */
  protected passing(_ms: number): void {}

  protected after(ms: number, act: () => void): void {
    this.#changes.push({ atMs: this.#nowMs + ms, act });
    this.#changes.sort((a, b) => a.atMs - b.atMs);
  }

  protected addEngine(model: EngineModel): void {
    const { kvTokens } = model;
    const { reportsTokens, isPaced, movesKv } = this.#options;
    assert(this.#contextTokens < kvTokens, "the longest request fits into one engine");
    const reportTokens = Math.max(1, Math.min(REPORT_TOKENS, kvTokens * REPORT_PART));
    const engine = new SimulatedEngine({
      ...model,
      workerId: workerId(this.engines.length),
      contextTokens: this.#contextTokens,
      sharesKv: movesKv,
      world: this,
      reportTokens: reportsTokens ? reportTokens : Number.POSITIVE_INFINITY,
      isPaced,
    });
    this.engines.push(engine);
    this.serving.push(engine);
    this.rollout.addWorker(engine);
  }

  /** Performs the changes that are due at engines; returns whether the rollout got events. */
  #isTurn(): boolean {
    let isTurn = false;
    for (const engine of this.serving) {
      if (engine.turn()) isTurn = true;
    }
    return isTurn;
  }

  /** Advances time to the next change; returns whether that was in `#changes`, and not an engine's. */
  #moveOn(): boolean {
    const changeMs = this.#changes.at(0)?.atMs ?? Number.POSITIVE_INFINITY;
    let atMs = changeMs;
    for (const engine of this.serving) atMs = Math.min(atMs, engine.nextMs);
    assert(Number.isFinite(atMs), "work is left, so something is due");
    this.passing(atMs - this.#nowMs);
    this.#nowMs = atMs;
    const isChange = changeMs === atMs;
    if (isChange) this.#changes.shift()?.act();
    return isChange;
  }

  #listener(): RolloutReader {
    const broke = (error: unknown): void => {
      this.#error ??= error;
    };
    return {
      tokens: (request) => this.took(request),
      finished: (request) => this.finished(request),
      groupFinished: (group) => this.groupFinished(group),
      workerFailed: (_worker, message) => assert(false, message),
      threw: broke,
      broken: broke,
    };
  }

  #addGroups(): void {
    for (const [number, group] of this.#options.groups.entries()) {
      if (group.atMs === 0) this.#addGroup(number, group);
      else this.after(group.atMs, () => this.#addGroup(number, group));
    }
  }

  #addGroup(number: number, { promptTokens, lengths }: GroupModel): void {
    const { tokensMax } = this.#options;
    const drawn = { temperature: 1, seed: 0, tokensMax, stopTokenIds: [] };
    const { requests } = this.rollout.submit({
      groupId: groupId(`g${number}`),
      prompt: new Int32Array(promptTokens),
      size: lengths.length,
      sampling: { ...drawn, ...SAMPLING_DEFAULTS },
    });
    this.#groupsToCome -= 1;
    for (const request of requests) {
      this.requests.push(request);
      countOnly(request);
    }
  }
}

export function meanOf(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / Math.max(1, values.length);
}
