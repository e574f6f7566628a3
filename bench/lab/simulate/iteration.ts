// One iteration of a workload of the lab: the product's simulation, with what only the lab knows of it. Drafts are
// accepted by chance, responses go on from an earlier iteration or are given up, and engines leave and come.

import { present } from "../../../src/core/base/assert.ts";
import { type RequestId, workerId } from "../../../src/core/base/ids.ts";
import type { Group, RolloutRequest } from "../../../src/core/request/buffer.ts";
import { firstComplete } from "../../../src/core/rollout/selection.ts";
import type { PolicyParts } from "../../../src/core/schedule/policies.ts";
import type { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import type { CoreExports } from "../../../src/core/wasm/load.ts";
import { tokensOf } from "../../../src/tools/simulate/counted-response.ts";
import type { EngineModel, Speculation } from "../../../src/tools/simulate/engine.ts";
import {
  EPOCH,
  meanOf,
  Simulation,
  type SimulationFigures,
} from "../../../src/tools/simulate/simulation.ts";
import type { GroupLengths } from "./lengths.ts";
import { StepModel } from "./step-time.ts";
import { engineSlots, type Workload } from "./workload.ts";

/** Objects that a scheduler may be built from. `lengthOf` is for oracles alone. */
export interface SchedulerParts extends PolicyParts {
  readonly lengthOf: (request: RolloutRequest) => number;
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

export interface IterationOptions {
  readonly workload: Workload;
  readonly lengths: GroupLengths;
  readonly core: CoreExports;
  readonly chunkTokens: number;
  /** Whether requests are divided into chunks; false: they run in one piece. */
  readonly isDivided: boolean;
  readonly schedulerFor: (parts: SchedulerParts) => Scheduler;
  /** null: no drafting. */
  readonly speculation: Speculation | null;
  /** Chance that the next draft token of the request is accepted. `reached`: output tokens of each request, by number. */
  readonly qualityOf: (request: RolloutRequest, reached: Int32Array) => number;
  /** Whether the simulation stops, which is asked with what is finished and what is not; default: at the end of all. */
  readonly until?: (at: { readonly groups: number; readonly unfinished: number }) => boolean;
  /** Responses of each group after which the others are given up; default: all are wanted. */
  readonly finishFirst?: number;
  /** Output tokens that request number i has from an earlier iteration; default: none. */
  readonly progress?: readonly number[];
  /** Default: all engines stay. */
  readonly elastic?: Elastic;
  readonly isPaced: boolean;
}

/** Times in seconds. */
export interface IterationResult extends SimulationFigures {
  /** Time of all engines that were there. */
  readonly engineS: number;
  /** Wall time of the same requests if no engine left; null: none did. */
  readonly calmS: number | null;
  readonly migratedBytes: number;
  /** Between the first and the last instance to run out of work, over the wall time. */
  readonly finishSpread: number;
  /** When the 5 % of requests that end last had begun, on average, over the wall time. */
  readonly lateStartShare: number;
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
}

/** The paper gives the time at which the last 5 % began. */
const LAST_SHARE = 0.05;

export class Iteration extends Simulation {
  readonly #options: IterationOptions;
  readonly #model: StepModel;
  readonly #reached: Int32Array;
  readonly #startedMs: number[] = [];
  readonly #finished: RolloutRequest[] = [];
  readonly #returnedLengths: number[] = [];
  #finishedGroups = 0;
  #engineMs = 0;
  /** Engines that have got their notice: the first ones of `serving`. */
  #leaving = 0;

  constructor(options: IterationOptions) {
    const { workload, lengths, core, chunkTokens, isDivided, isPaced } = options;
    const { promptTokens } = workload;
    const model = new StepModel(workload);
    const flat = lengths.flat();
    const lengthOf = ({ spec }: RolloutRequest) => present(flat[spec.requestId], "one for each");
    super({
      groups: lengths.map((group) => ({ promptTokens, lengths: group, atMs: 0 })),
      engines: Array.from({ length: workload.instances }, (_, i) => engineOf(options, i)),
      tokensMax: workload.shape.tokensMax,
      core,
      chunkTokens,
      reportsTokens: isDivided,
      schedulerFor: (parts) => options.schedulerFor({ ...parts, lengthOf, ranks: model.ranks }),
      movesKv: true,
      isPaced,
    });
    this.#options = options;
    this.#model = model;
    this.#reached = new Int32Array(this.requests.length);
    for (const [index, tokens] of options.progress?.entries() ?? []) {
      if (tokens > 0) this.#restore(present(this.requests[index], "one for each"), tokens);
    }
    if (options.elastic !== undefined) this.#expectNotice(options.elastic);
  }

  async result(): Promise<IterationResult> {
    await this.run();
    const figures = this.figures();
    const wallMs = this.nowMs();
    const ends = this.engines.map((engine) => engine.counters.lastTokenMs);
    const finished = this.#finished;
    const last = finished.slice(Math.floor(finished.length * (1 - LAST_SHARE)));
    const startOf = ({ spec }: RolloutRequest) => this.#startedMs[spec.requestId] ?? 0;
    return {
      ...figures,
      engineS: this.#engineMs / 1000,
      calmS: null,
      migratedBytes: figures.migratedTokens * this.#model.kvBytesPerToken,
      finishSpread: (Math.max(...ends) - Math.min(...ends)) / wallMs,
      lateStartShare: meanOf(last.map(startOf)) / wallMs,
      reached: this.requests.map(({ response }) => response.length),
      returnedLengths: this.#returnedLengths,
      iterations: 1,
      freeS: 0,
      biasLengths: null,
      staleShare: 0,
    };
  }

  override qualityOf(requestId: RequestId): number {
    return this.#options.qualityOf(
      present(this.requests[requestId], "one for each"),
      this.#reached,
    );
  }

  override admitted(requestId: RequestId): void {
    this.#startedMs[requestId] ??= this.nowMs();
  }

  protected override get isOver(): boolean {
    const { until } = this.#options;
    const { unfinished } = this.rollout;
    return super.isOver || until?.({ groups: this.#finishedGroups, unfinished }) === true;
  }

  protected override took({ spec, response }: RolloutRequest): void {
    this.#reached[spec.requestId] = response.length;
  }

  protected override finished(request: RolloutRequest): void {
    super.finished(request);
    if (request.response.finish !== "abort") this.#finished.push(request);
    const { finishFirst } = this.#options;
    const { requests } = request.group;
    if (finishFirst === undefined || firstComplete(requests, finishFirst).length < finishFirst)
      return;
    // Not inside the turn in which the last of them has finished.
    queueMicrotask(() => {
      for (const one of requests) this.rollout.end(one, "abort");
    });
  }

  protected override groupFinished({ requests }: Group): void {
    this.#finishedGroups += 1;
    const { finishFirst } = this.#options;
    const taken = finishFirst === undefined ? requests : firstComplete(requests, finishFirst);
    this.#returnedLengths.push(...taken.map(({ response }) => response.length));
  }

  protected override passing(ms: number): void {
    this.#engineMs += ms * this.serving.length;
  }

  /** The request has `reached` tokens from an earlier iteration. */
  #restore(request: RolloutRequest, reached: number): void {
    const { requestId } = request.spec;
    this.#reached[requestId] = reached;
    const chunk = { workerId: workerId(0), epoch: EPOCH, weights: null, offset: 0 };
    this.rollout.restore(request, {
      ...tokensOf(reached),
      top: null,
      chunks: [{ ...chunk, tokens: reached }],
      finish: reached === this.lengthOf(requestId) ? "stop" : null,
      refusal: null,
    });
  }

  /** The engine that has been there longest is the next to leave. */
  #expectNotice(elastic: Elastic): void {
    const { lifeS, noticeS, absentS } = elastic;
    this.after((1000 * lifeS) / this.#options.workload.instances, () => {
      this.#expectNotice(elastic);
      const engine = this.serving[this.#leaving];
      if (engine === undefined || this.serving.length === 1) return;
      if (noticeS > 0) this.rollout.setReachable(engine, true, true);
      this.#leaving += 1;
      this.after(1000 * noticeS, () => {
        this.#leaving -= 1;
        this.serving.shift();
        this.rollout.removeWorker(engine);
        this.rollout.forgetWorker(engine.workerId);
        this.after(1000 * absentS, () =>
          this.addEngine(engineOf(this.#options, this.engines.length)),
        );
      });
    });
  }
}

/** Engine number `i`. */
function engineOf({ workload, speculation }: IterationOptions, i: number): EngineModel {
  const { slow, constants } = workload;
  const slowdown = constants.slowdown * (i < (slow?.instances ?? 0) ? (slow?.factor ?? 1) : 1);
  const times = new StepModel({ ...workload, constants: { ...constants, slowdown } });
  const slots = engineSlots(workload.deployment);
  return { slots, kvTokens: times.kvTokens, times, speculation };
}
