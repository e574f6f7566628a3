// Carries out what the scheduler decides, on workers, and takes in what they make. It owns the lives of
// the requests; it never decides an order or a place. Groups and workers come and go while it runs.
//
// A request: waiting -> (moving, while its KV is on the way) -> running -> waiting ... -> finished.

import { assert } from "../base/assert.ts";
import type { Clock } from "../base/clock.ts";
import type { GroupId, RequestId, WeightEpoch, WeightsId, WorkerId } from "../base/ids.ts";
import { ContextManager, type LengthPrior } from "../context/context.ts";
import type { DraftSource } from "../draft/group-update.ts";
import { type DraftMode, DraftRegistry } from "../draft/registry.ts";
import type { KvPool } from "../kv/pool.ts";
import {
  contextTokens,
  type Group,
  type GroupSpec,
  isComplete,
  isSuspect,
  type Request,
  RequestBuffer,
  type Wanted,
} from "../request/buffer.ts";
import type { TopLogprobs } from "../request/columns.ts";
import type { FinishReason } from "../request/request.ts";
import type { SavedOutput } from "../request/saved-output.ts";
import { ChunkLength } from "../schedule/chunk-length.ts";
import type { Paces } from "../schedule/pace.ts";
import { type PolicyName, schedulerFor } from "../schedule/policies.ts";
import type { ScheduleCommand, Scheduler } from "../schedule/scheduler.ts";
import type { CoreExports } from "../wasm/load.ts";
import { AttemptBudget } from "./attempt-budget.ts";
import { Executor, type ExecutorSteps, type Target } from "./executor.ts";
import { Ledger } from "./ledger.ts";
import { contained, type RolloutListener } from "./listener.ts";
import { Meter } from "./meter.ts";
import { Outbox } from "./outbox.ts";
import { PooledKv } from "./pooled-kv.ts";
import { Quarantine } from "./quarantine.ts";
import { expertsWanted, lacksReports, takeReports } from "./reports.ts";
import { problemOf } from "./token-check.ts";
import type { KvBlob, Worker, WorkerCommand, WorkerEvent } from "./worker.ts";

export interface RolloutOptions {
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  /** Output tokens of one chunk, >= 1; null: chosen by what its end costs. The `group` policy does not divide. */
  readonly chunkTokens: number | null;
  /** Of the workers' weights at the start. */
  readonly epoch: WeightEpoch;
  /** Of the model: a worker's token at or beyond it ends the request. Default: any token is taken. */
  readonly vocabularySize?: number;
  readonly pool: KvPool;
  readonly clock: Clock;
  /** Holds the scheduler's heaps. */
  readonly core: CoreExports;
  readonly listener: RolloutListener;
  /** Runs something after a while; returns what cancels it. Absent: what would wait for a while does not. */
  readonly later?: (act: () => void, ms: number) => () => void;
  /** Of groups whose prompt has a history. */
  readonly lengthPrior?: LengthPrior;
}

/** keep: requests stay as they are. wait: those that are there finish first. abort: they are given up. */
export type PauseMode = "keep" | "wait" | "abort";

/** A strict response begins anew so often at most: with more updates than that in its time it would never end. */
const STRICT_RESTARTS_MAX = 16;

/**
 * Siblings' tokens go out to each worker at most so often. A message costs the engine it goes to about as
 * much as a hundred tokens of drafting, and a draft loses little by siblings that lag a few dozen tokens.
 */
const DELTA_INTERVAL_MS = 50;
/** Requests whose tokens go out in one turn, at most, so that no turn is long. */
const DELTA_REQUESTS_MAX = 256;
/** And in the long run: with more requests than that the pauses grow, and deltas take a few percent of a core. */
const DELTA_REQUESTS_PER_MS = 20;

/** The status of a request that an engine answered with what is no answer. */
const BAD_GATEWAY = 502;
/**
 * Requests of a worker that died wait for so long: whatever kills all workers from outside, as at a shutdown, has then
 * killed the next one as well, and not while it runs them.
 */
const SETTLE_MS = 500;
/** What workers said when they died, in the message about a request. */
const REPORTS_MAX = 4;

/** The turn of a session before a request. */
export interface PreviousTurn {
  readonly request: Request;
  /** So many first tokens of its prompt and response are those of the new prompt. */
  readonly sharedTokens: number;
}

/** A pause that has not taken hold yet. */
interface Waiter {
  readonly isOver: () => boolean;
  readonly resolve: (hasTakenHold: boolean) => void;
}

export class Rollout {
  readonly meter: Meter;
  readonly #options: RolloutOptions;
  readonly #listener: RolloutListener;
  readonly #buffer = new RequestBuffer();
  readonly #context: ContextManager;
  readonly #chunks: ChunkLength;
  readonly #scheduler: Scheduler;
  readonly #registry: DraftRegistry;
  readonly #ledger: Ledger;
  readonly #pooled: PooledKv;
  readonly #vocabularySize: number;
  readonly #executor: Executor;
  readonly #outbox = new Outbox();
  /** Workers that are listened to. */
  readonly #watched = new WeakSet<Worker>();
  /** Requests that came while the rollout was paused. */
  readonly #arrivals = new Set<Request>();
  readonly #attempts: AttemptBudget;
  readonly #quarantine: Quarantine;
  /** Requests whose worker has just died. */
  readonly #settling = new Set<Request>();
  /** Requests that are to be ended in the next turn, and why. */
  readonly #doomed = new Map<Request, string>();
  #waiters: Waiter[] = [];
  #epoch: WeightEpoch;
  #deltasDueMs = Number.NEGATIVE_INFINITY;
  /** Requests whose tokens are still to go out in this round. */
  #deltasLeft = 0;
  #pause: PauseMode | null = null;
  #isWoken = false;
  #isStopped = false;

  constructor(options: RolloutOptions) {
    this.#options = options;
    this.#listener = contained(options.listener, (error, request) => this.#threw(error, request));
    this.#epoch = options.epoch;
    this.#context = new ContextManager(options.lengthPrior);
    this.#ledger = new Ledger(() => options.clock.nowMs());
    this.#chunks = new ChunkLength(options.chunkTokens);
    this.#scheduler = schedulerFor(options.policy, {
      buffer: this.#buffer,
      context: this.#context,
      chunks: this.#chunks,
      core: options.core,
    });
    this.#executor = new Executor(this.#ledger, this.#steps());
    this.#registry = new DraftRegistry(options.draft);
    this.#vocabularySize = options.vocabularySize ?? Number.POSITIVE_INFINITY;
    this.meter = new Meter(
      options.clock,
      () => this.#buffer.requests,
      (group) => this.#context.learned(group),
    );
    this.#attempts = new AttemptBudget(options.clock);
    this.#quarantine = new Quarantine(options.clock);
    this.#pooled = new PooledKv(options.pool, () => this.meter.count("kv_pool_failures"));
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /** Of all groups that are not complete, finished or not. */
  get requests(): Iterable<Request> {
    return this.#buffer.requests;
  }

  /** null: its group is complete, or it never was. */
  request(id: RequestId): Request | null {
    return this.#buffer.request(id);
  }

  /** Of an incomplete group, the length that the scheduler expects of its longest response; null: nothing is known yet. */
  lengthEstimate(group: Group): number | null {
    return this.#context.learned(group);
  }

  /** null: it runs. */
  get pauseMode(): PauseMode | null {
    return this.#pause;
  }

  /** How fast workers step. */
  get paces(): Paces {
    return this.#ledger.paces;
  }

  /** Requests that are not finished. */
  get unfinished(): number {
    return this.#buffer.unfinished;
  }

  /** Which sequence of which draft group the request is; null: none. */
  draftSource(request: Request): DraftSource | null {
    return this.#registry.source(request);
  }

  /** Whose tokens those of a sequence of a draft group are; null: nobody's, or those of a beginning that was taken back. */
  draftOwner(source: DraftSource): Request | null {
    return this.#registry.ownerOf(source, (id) => this.#buffer.group(id));
  }

  get workers(): Worker[] {
    return this.#ledger.workers();
  }

  /** Those on which something runs, or that KV is leaving: who keeps a pause from taking hold. */
  get busyWorkers(): Worker[] {
    const { sources } = this.#executor;
    return this.#ledger
      .workers()
      .filter(({ workerId }) => sources.has(workerId) || this.#ledger.isBusy(workerId));
  }

  group(id: GroupId): Group | null {
    return this.#buffer.group(id);
  }

  /** The worker has the weights of the rollout's epoch, and nobody else listens to it. */
  addWorker(worker: Worker): void {
    this.#ledger.add(worker);
    this.meter.worker(worker);
    this.watch(worker);
    this.#wake();
  }

  /** From now on `workerFailed` tells of the worker, which does not serve before it is added. */
  watch(worker: Worker): void {
    if (this.#watched.has(worker)) return;
    this.#watched.add(worker);
    worker.listen((epoch, events) => this.#receive(worker, epoch, events));
  }

  /** The worker serves no more; its requests continue elsewhere. Its failure is still reported. */
  removeWorker(worker: Worker): void {
    if (this.#ledger.worker(worker.workerId) !== worker) return;
    this.#turn(() => this.#remove(worker));
  }

  /** The worker was removed and does not come back. Requests that only it had room for end. */
  forgetWorker(workerId: WorkerId): void {
    this.#turn(() => this.#ledger.forget(workerId));
    this.meter.workerForgotten(workerId);
  }

  /**
   * false: the worker's connection is lost and may come back. What runs there waits for it; nothing new is placed
   * there, and requests whose KV is there go on elsewhere without it.
   */
  setReachable(worker: Worker, isReachable: boolean): void {
    if (this.#ledger.worker(worker.workerId) !== worker) return;
    this.#turn(() => {
      this.#ledger.setReachable(worker.workerId, isReachable);
      if (isReachable) return;
      const { workerId } = worker;
      for (const id of this.#executor.leaving(workerId)) this.#exported(id, null, workerId);
    });
  }

  /** A group that is complete from the start. */
  submit(spec: GroupSpec): Group {
    const group = this.#buffer.add(spec);
    for (const request of group.requests) this.#enter(request);
    return group;
  }

  /** An empty group that requests may `join`. Its id must be free. */
  open(groupId: GroupId, prompt: Int32Array): Group {
    return this.#buffer.open(groupId, prompt);
  }

  join(group: Group, wanted: Wanted, previous: PreviousTurn | null = null): Request {
    const request = this.#buffer.join(group, wanted);
    if (previous !== null) this.#inherit(request, previous);
    this.#enter(request);
    return request;
  }

  /**
   * Gives a request that has just joined what an earlier process generated of it: it continues from there. false: it
   * begins anew, because it must run in one piece, or all its tokens must be of the same weights.
   */
  restore(request: Request, saved: SavedOutput): boolean {
    assert(request.status === "waiting" && request.response.length === 0, "it has just joined");
    if (saved.finish === null && !this.#continues(request, saved)) return false;
    this.#turn(() => {
      if (!this.#arrivals.has(request)) this.#scheduler.remove(request);
      const { response } = request;
      for (const { workerId, epoch, weights, offset, tokens } of saved.chunks) {
        response.openChunk(workerId, epoch, weights);
        const end = offset + tokens;
        const part = saved.tokens.subarray(offset, end);
        response.append(
          offset,
          part,
          saved.logprobs.subarray(offset, end),
          rows(saved.top, offset, end),
        );
      }
      this.meter.count("resumed_tokens", response.length);
      if (saved.finish !== null) {
        this.#arrivals.delete(request);
        response.refusal = saved.refusal;
        this.#finish(request, saved.finish);
        return;
      }
      if (this.#context.progressed(request)) this.#scheduler.refresh(request.group);
      if (!this.#arrivals.has(request)) this.#scheduler.enqueue(request);
    });
    return true;
  }

  #continues({ spec, isStrict }: Request, { chunks }: SavedOutput): boolean {
    const isOld = chunks.some(({ tokens, epoch }) => tokens > 0 && epoch !== this.#epoch);
    return spec.divisible && !(isStrict && isOld);
  }

  /** No turn follows on the request: what is kept of its KV goes. */
  letGo(request: Request): void {
    if (request.status !== "finished") return;
    this.#turn(() => this.#letGo(request));
  }

  /** No request joins the group any more; it is forgotten as soon as all of them are finished. */
  close(group: Group): void {
    if (group.isClosed) return;
    group.isClosed = true;
    if (isComplete(group)) this.#turn(() => this.#retire(group));
  }

  /**
   * Ends a response as it stands. abort: it is given up. stop: its text is complete (a stop string).
   * Nothing happens if it is finished.
   */
  end(request: Request, reason: "abort" | "stop"): void {
    if (request.status === "finished" || this.#isStopped) return;
    this.#turn(() => this.#cut(request, reason));
  }

  /**
   * Resolves when the pause has taken hold: `keep`: nothing runs. `wait`, `abort`: nothing is left. false: it
   * never did, because somebody resumed before.
   */
  async pause(mode: PauseMode): Promise<boolean> {
    this.#pause = mode;
    if (mode === "keep") return await this.#until(() => this.isQuiet);
    if (mode === "abort") {
      this.#turn(() => {
        for (const request of [...this.#buffer.requests]) {
          if (request.status !== "finished" && !this.#arrivals.has(request)) {
            this.#cut(request, "abort");
          }
        }
      });
    }
    return await this.#until(() => this.#buffer.unfinished === this.#arrivals.size && this.isQuiet);
  }

  resume(): void {
    this.#pause = null;
    for (const request of this.#arrivals) this.#scheduler.enqueue(request);
    this.#arrivals.clear();
    for (const waiter of this.#waiters.splice(0)) waiter.resolve(false);
    this.#wake();
  }

  /**
   * Every worker has the weights of `epoch` now. Requests that are not finished go on under them, those that are strict
   * from their first token; KV and drafts of the old ones are dropped, and late tokens refused.
   */
  advance(epoch: WeightEpoch): void {
    assert(epoch > this.#epoch, "weight epochs go up");
    this.#turn(() => {
      this.#epoch = epoch;
      this.#quarantine.clear();
      this.#outbox.clear();
      this.#registry.clear();
      this.#displaceAll();
      for (const request of [...this.#buffer.requests]) {
        if (request.isStrict && request.status === "waiting") this.#beginAnew(request);
      }
      for (const worker of this.#ledger.workers()) {
        this.#post(worker.workerId, { kind: "advance", epoch });
      }
    });
  }

  /** The workers have dropped, or may drop, whatever KV waiting requests have left there. Only while it is quiet. */
  forgetKv(): void {
    assert(this.isQuiet, "nothing runs");
    this.#turn(() => {
      for (const { spec, residentOn } of this.#buffer.requests) {
        if (residentOn === null) continue;
        this.#post(residentOn, { kind: "release", requestId: spec.requestId });
      }
      this.#displaceAll();
    });
  }

  /** Stops as it stands: nothing is scheduled and nothing heard any more. */
  stop(): void {
    this.#isStopped = true;
  }

  #displaceAll(): void {
    this.#pooled.clear();
    this.#executor.clear();
    for (const request of [...this.#buffer.requests]) this.#unplace(request);
  }

  #inherit(heir: Request, { request: from, sharedTokens }: PreviousTurn): void {
    if (from.status !== "finished") return;
    heir.workerId = from.workerId;
    this.#pooled.inherit(heir, from, sharedTokens);
    const tokens = Math.min(sharedTokens, from.residentTokens);
    if (from.residentOn !== null && tokens > 0) {
      this.#scheduler.unparked(from);
      const workerId = this.#executor.inherit(heir, from, tokens);
      const { requestId } = heir.spec;
      this.#post(workerId, { kind: "adopt", requestId, from: from.spec.requestId, tokens });
    }
    // What the new turn cannot go on from.
    this.#letGo(from);
  }

  /** Of a finished request. */
  #letGo(request: Request): void {
    const { requestId } = request.spec;
    this.#scheduler.unparked(request);
    const holder = this.#executor.release(request);
    if (holder !== null) this.#post(holder, { kind: "release", requestId });
    this.#pooled.release(requestId);
  }

  /** The worker that can park what it runs of the request for the next turn; null: there is none. */
  #keeperOf({ spec, status, workerId }: Request): Worker | null {
    if (spec.keepsKv !== true || !spec.divisible || status !== "running") return null;
    const worker = workerId === null ? null : this.#ledger.worker(workerId);
    return worker?.keepsKv === true ? worker : null;
  }

  /** The KV of a finished turn stays where it is. */
  #retain(request: Request): void {
    this.#executor.parked(request);
    this.#scheduler.retained(request);
  }

  #enter(request: Request): void {
    request.response.joinedMs = this.#options.clock.nowMs();
    this.#context.joined(request);
    this.#scheduler.refresh(request.group);
    this.meter.requestJoined(request, this.#epoch);
    const reason = this.#quarantine.reason(request);
    // The caller can handle its end only when it knows the request.
    if (reason !== null) this.#doomed.set(request, reason);
    if (this.#pause === null) this.#scheduler.enqueue(request);
    else this.#arrivals.add(request);
    this.#wake();
  }

  #receive(worker: Worker, epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (this.#isStopped) return;
    const isCurrent = epoch === this.#epoch;
    this.meter.turn();
    this.#turn(() => {
      for (const event of events) {
        if (event.kind === "failed") this.#failed(worker, event.message, event.isCut);
        // A late message: of weights that are no longer current, or of a removed worker.
        else if (isCurrent && this.#ledger.worker(worker.workerId) === worker) {
          this.#take(worker, event);
        }
      }
    });
  }

  #take(worker: Worker, event: Exclude<WorkerEvent, { kind: "failed" }>): void {
    const { workerId } = worker;
    switch (event.kind) {
      case "tokens":
        this.#tokens(worker, event);
        return;
      case "chunk_done":
        this.#chunkDone(worker, event);
        return;
      case "exported":
        this.#exported(event.requestId, event.kv, workerId);
        return;
      case "evicted":
        this.#evicted(workerId, this.#buffer.request(event.requestId));
        return;
      case "stats":
        this.meter.stats(workerId, event.stats);
        this.#ledger.preempted(workerId, event.stats.preemptions);
        this.#ledger.counted(workerId, event.stats);
        this.#listener.stats(workerId, event.stats);
        return;
      case "gap": {
        const request = this.draftOwner(event);
        if (request !== null) this.#registry.missing(request, workerId, event.offset);
        return;
      }
      case "preempted": {
        const run = this.#running(event.requestId, workerId)?.response.chunks.at(-1)?.run;
        if (run) run.preemptions += 1;
        return;
      }
      case "advanced":
        return;
    }
  }

  #running(id: RequestId, workerId: WorkerId): Request | null {
    const request = this.#buffer.request(id);
    return request?.status === "running" && request.workerId === workerId ? request : null;
  }

  #tokens(worker: Worker, event: Extract<WorkerEvent, { kind: "tokens" }>): void {
    const request = this.#running(event.requestId, worker.workerId);
    if (request === null) {
      this.meter.count("late_tokens", event.tokens.length);
      return;
    }
    const problem = problemOf(event, request.response, this.#vocabularySize);
    if (problem !== null) {
      this.#refuse(request, `${worker.name} gave ${problem}`);
      return;
    }
    const { response } = request;
    const from = response.length;
    const result = response.append(event.offset, event.tokens, event.logprobs, event.top);
    if (result.kind === "gap") {
      this.meter.count("lost_tokens", result.missing);
      this.#failed(worker, `lost ${result.missing} tokens of request ${event.requestId}`);
      return;
    }
    this.meter.tokens(worker.workerId, result.fresh);
    response.firstTokenMs ??= this.meter.turnMs;
    this.#ledger.made(worker.workerId, result.fresh);
    this.#executor.reached(request, contextTokens(request));
    this.meter.count("duplicated_tokens", result.repeated);
    if (request.attempts !== null && response.length > request.attempts.watermark) {
      this.#attempts.progressed(request);
    }
    if (this.#context.progressed(request)) this.#scheduler.refresh(request.group);
    this.#registry.generated(request);
    if (result.fresh === 0) return;
    const chunk = response.chunks.at(-1);
    if (chunk?.offset === from) {
      if (chunk.run) chunk.run.firstTokenMs = this.meter.turnMs;
      this.#chunks.continued(request, this.#options.clock.nowMs());
    }
    this.#listener.tokens(request, from);
  }

  #chunkDone(worker: Worker, event: Extract<WorkerEvent, { kind: "chunk_done" }>): void {
    const { workerId } = worker;
    const request = this.#running(event.requestId, workerId);
    if (request === null) return;
    if (event.finish === null && request.response.length === request.response.tokensMax) {
      this.#failed(worker, `left request ${event.requestId} open, which has all its tokens`);
      return;
    }
    if (request.response.chunks.length === 1) {
      request.response.promptTokensCached = event.promptTokensCached ?? null;
    }
    const problem = takeReports(request, event);
    if (problem !== null) {
      this.#failed(worker, `the experts of request ${event.requestId} ${problem}`);
      return;
    }
    const run = request.response.chunks.at(-1)?.run;
    if (run) run.drafts = event.drafts ?? null;
    request.response.closeChunk(this.meter.turnMs, event.finish);
    if (event.finish !== null) {
      request.response.refusal = event.refusal ?? null;
      const keeps = request.spec.keepsKv === true && worker.keepsKv === true;
      if (keeps && event.finish !== "abort") this.#retain(request);
      else this.#executor.release(request);
      this.#finish(request, event.finish);
      return;
    }
    this.#chunks.ended(request, this.#options.clock.nowMs());
    this.#executor.parked(request);
    this.#scheduler.enqueue(request);
  }

  /** What it held on a worker has been given back already. */
  #finish(request: Request, reason: FinishReason): void {
    const { group, response } = request;
    response.finish = reason;
    response.finishedMs = this.#options.clock.nowMs();
    response.closeChunk(response.finishedMs, reason);
    const isGroupDone = this.#buffer.finish(request);
    if (reason === "abort") this.#context.aborted(request);
    else this.#context.finished(request);
    if (request.attempts !== null) this.#attempts.finished(request, reason !== "abort");
    this.#scheduler.refresh(group);
    this.#pooled.release(request.spec.requestId);
    this.meter.requestFinished(request);
    this.#listener.finished(request);
    if (isGroupDone) this.#retire(group);
  }

  #retire(group: Group): void {
    for (const [workerId, updates] of this.#registry.retired(group)) {
      for (const update of updates) this.#post(workerId, update);
    }
    for (const request of group.requests) if (request.spec.keepsKv === true) this.#letGo(request);
    this.meter.count("finished_groups");
    this.#listener.groupFinished(group);
    this.#scheduler.forget(group);
    this.#context.forget(group);
    this.#buffer.remove(group);
  }

  /** What its worker says of it cannot be used; the worker itself goes on. */
  #refuse(request: Request, message: string): void {
    request.response.refusal = { status: BAD_GATEWAY, message };
    this.#cut(request, "abort");
  }

  #cut(request: Request, reason: "abort" | "stop"): void {
    if (!this.#arrivals.delete(request) && request.status === "waiting") {
      this.#scheduler.remove(request);
    }
    this.#settling.delete(request);
    this.#doomed.delete(request);
    const { requestId } = request.spec;
    const worker = reason === "stop" ? this.#keeperOf(request) : null;
    if (worker !== null) {
      this.#post(worker.workerId, { kind: "park", requestId });
      this.#retain(request);
    } else {
      const holder = this.#executor.release(request);
      if (holder !== null) this.#post(holder, { kind: "release", requestId });
    }
    this.#finish(request, reason);
  }

  /** The KV of a request has left its worker, or is known to be gone (`kv` null). */
  #exported(requestId: RequestId, kv: KvBlob | null, from: WorkerId): void {
    const departure = this.#executor.departed(requestId);
    const request = this.#buffer.request(requestId);
    if (request === null) return;
    if (request.status === "finished" && request.spec.keepsKv !== true) return;
    // Preempted: its chunk is over, and its KV has left with it.
    if (departure === null && !this.#isParkedOn(from, request)) return;
    const target = departure?.target ?? null;
    // KV of tokens that are not known, as after a lost frame of them, has no name.
    const known = request.spec.prompt.length + request.response.length;
    if (kv !== null && kv.tokens <= known) {
      const weights = this.#weightsOf(from);
      this.#pooled.store(request, { kv, epoch: this.#epoch, weights, leased: target !== null });
      this.meter.pool(this.#options.pool.stats());
    }
    if (departure === null) this.#evicted(from, request);
    if (target !== null) this.#launchFromPool(request, target);
  }

  #isParkedOn(workerId: WorkerId, request: Request): boolean {
    const isParked = request.status === "waiting" || request.status === "finished";
    return isParked && request.residentOn === workerId;
  }

  #evicted(workerId: WorkerId, request: Request | null): void {
    if (request === null || !this.#isParkedOn(workerId, request)) return;
    this.#executor.evicted(request);
    this.#scheduler.unparked(request);
  }

  /** The owner of a worker gets its failure even if the worker does not serve, or not any more. */
  #failed(worker: Worker, message: string, isCut = false): void {
    if (isCut) this.removeWorker(worker);
    else if (this.#ledger.worker(worker.workerId) === worker) {
      const running = [...this.#buffer.requests].filter(
        ({ status, workerId }) => status === "running" && workerId === worker.workerId,
      );
      const report = message.startsWith(worker.name) ? message : `${worker.name}: ${message}`;
      const spent = this.#attempts.died(report, running);
      this.#remove(worker);
      for (const request of spent) if (request.status !== "finished") this.#condemn(request);
      this.#settleLater(running);
    }
    this.#listener.workerFailed(worker, message);
  }

  /** Workers died of the request: it is ended, and with it those that ask for the same and are suspects too. */
  #condemn(request: Request): void {
    const { spec, group, attempts } = request;
    if (request.status === "finished" || attempts === null) return;
    const { requestId, sampleIndex, sampling } = spec;
    const name = `request ${requestId} (group ${group.groupId}, response ${sampleIndex})`;
    const reports = attempts.reports.slice(-REPORTS_MAX).join("; ");
    const message = `${name}: ${attempts.total} workers ended while they ran it, it is not tried again: ${reports}`;
    this.#quarantine.add(request, message);
    this.#reject(request, message);
    for (const sibling of group.requests) {
      const isAlike = sibling.spec.sampling === sampling && isSuspect(sibling);
      if (isAlike && sibling.status === "waiting") this.#reject(sibling, message);
    }
  }

  #reject(request: Request, message: string): void {
    request.response.refusal = { status: 502, message };
    this.meter.count("quarantined_requests");
    this.#listener.quarantined(request);
    this.#cut(request, "abort");
  }

  /** Requests whose worker has died are not tried again at once. */
  #settleLater(requests: readonly Request[]): void {
    const { later } = this.#options;
    const settling = requests.filter(({ status }) => status === "waiting");
    if (later === undefined || settling.length === 0) return;
    for (const request of settling) {
      this.#scheduler.remove(request);
      this.#settling.add(request);
    }
    const settle = () => {
      // One that was given up meanwhile settles no more.
      for (const request of settling) {
        if (this.#settling.delete(request)) this.#scheduler.enqueue(request);
      }
    };
    later(() => this.#turn(settle), SETTLE_MS);
  }

  /** What the worker ran goes back to the buffer and is recomputed elsewhere. */
  #remove({ workerId }: Worker): void {
    this.#ledger.remove(workerId);
    this.meter.workerGone(workerId);
    this.#registry.forget(workerId);
    this.#outbox.drop(workerId);
    for (const id of this.#executor.leaving(workerId)) this.#exported(id, null, workerId);
    for (const request of [...this.#buffer.requests]) {
      if (request.residentOn === workerId) this.#unplace(request);
    }
  }

  /** Whatever the request has on a worker is gone; if it ran, it waits again. */
  #unplace(request: Request): void {
    const hasRun = request.status === "moving" || request.status === "running";
    if (hasRun) request.response.closeChunk(this.#options.clock.nowMs(), "lost");
    this.#executor.lost(request);
    if (!hasRun) {
      this.#scheduler.unparked(request);
      return;
    }
    const end = unreportedEnd(request);
    if (end !== null && !lacksReports(request)) {
      this.#finish(request, end);
      return;
    }
    const canContinue = end === null && request.spec.divisible;
    const isRestarted = !canContinue && request.response.length > 0;
    if (isRestarted) {
      this.meter.restarted(request.response.length);
      request.response.restart();
      this.#registry.restarted(request);
    }
    this.#scheduler.enqueue(request);
    if (isRestarted) this.#listener.restarted(request);
  }

  /** What it has is of weights that are no longer current. It waits, and nothing of it is on a worker. */
  #beginAnew(request: Request): void {
    const { response } = request;
    if (response.chunks.length === 0) return;
    if (response.restarts >= STRICT_RESTARTS_MAX) {
      const message = `the weights changed ${response.restarts + 1} times before it was finished, and all its tokens must be of the same`;
      response.refusal = { status: 409, message };
      this.#cut(request, "abort");
      return;
    }
    // One that came, with saved tokens, while the rollout is paused is scheduled by `resume`; one whose worker has just
    // failed, when it has settled.
    const isScheduled = !this.#arrivals.has(request) && !this.#settling.has(request);
    if (isScheduled) this.#scheduler.remove(request);
    this.meter.restarted(response.length);
    response.restart();
    this.#registry.restarted(request);
    if (isScheduled) this.#scheduler.enqueue(request);
    this.#listener.restarted(request);
  }

  /** A listener failed at something: that is no reason to stop for the requests of others. */
  #threw(error: unknown, request: Request | null): void {
    if (request !== null && request.status !== "finished") {
      const message = `the server failed at this request: ${messageOf(error)}`;
      request.response.refusal = { status: 500, message };
      this.#cut(request, "abort");
    }
    this.#listener.threw(error, request);
  }

  /** Runs one turn: what happened, then what follows from it. Turns within turns are part of the first. */
  #turn(happen: () => void): void {
    this.#guarded(() => {
      happen();
      this.#wake();
    });
  }

  /** Everything that happens before the next microtask is scheduled together. */
  #wake(): void {
    if (this.#isWoken) return;
    this.#isWoken = true;
    queueMicrotask(() => {
      this.#isWoken = false;
      this.#guarded(() => this.#pump());
    });
  }

  /**
   * What is thrown here is a bug in the state that all requests share: the rollout stops. Errors of one listener
   * (`contained`), one worker (`#flush`) or the KV pool (`PooledKv`) are caught where they arise.
   */
  #guarded(act: () => void): void {
    if (this.#isStopped) return;
    try {
      act();
    } catch (error) {
      this.#isStopped = true;
      this.#listener.broken(error);
    }
  }

  #pump(): void {
    for (const [request, message] of [...this.#doomed]) this.#reject(request, message);
    if (this.#pause !== "keep") {
      const { kvTokensMax } = this.#ledger;
      for (const command of this.#scheduler.schedule(this.#ledger.slots(), kvTokensMax)) {
        this.#execute(command);
      }
    }
    this.#multicast();
    this.#flush();
    if (this.#waiters.length === 0) return;
    const over = this.#waiters.filter((waiter) => waiter.isOver());
    this.#waiters = this.#waiters.filter((waiter) => !over.includes(waiter));
    for (const waiter of over) waiter.resolve(true);
  }

  /** Nothing runs, and no KV is on its way. */
  get isQuiet(): boolean {
    return this.#ledger.inFlight === 0 && this.#executor.isStill;
  }

  #until(isOver: () => boolean): Promise<boolean> {
    return new Promise((resolve) => {
      this.#waiters.push({ isOver, resolve });
      this.#wake();
    });
  }

  #multicast(): void {
    if (this.#deltasLeft === 0) {
      const nowMs = this.#options.clock.nowMs();
      if (nowMs < this.#deltasDueMs) return;
      this.#deltasLeft = this.#registry.staleCount;
      const pauseMs = Math.max(DELTA_INTERVAL_MS, this.#deltasLeft / DELTA_REQUESTS_PER_MS);
      this.#deltasDueMs = nowMs + pauseMs;
    }
    const count = Math.min(this.#deltasLeft, DELTA_REQUESTS_MAX);
    this.#deltasLeft -= count;
    for (const { workerId, update } of this.#registry.flush(count)) this.#post(workerId, update);
  }

  #execute(command: ScheduleCommand): void {
    const { request } = command;
    if (command.kind === "reject") {
      const needs = `request ${request.spec.requestId} needs ${command.kvTokensNeeded} tokens of KV`;
      const message = `${needs}, and the largest worker has ${this.#ledger.kvTokensMax}`;
      request.response.refusal = { status: 502, message };
      this.#cut(request, "abort");
      return;
    }
    if (command.kind === "dispatch" && isSuspect(request)) {
      this.#ledger.suspect(command.workerId, request);
    }
    this.#executor.execute(command);
  }

  /** What the executor's steps are on workers. */
  #steps(): ExecutorSteps {
    return {
      depart: ({ spec: { requestId } }, from) => this.#post(from, { kind: "export", requestId }),
      preempt: ({ spec: { requestId } }, from) => {
        this.meter.count("chunks_ended_early");
        this.#post(from, { kind: "export", requestId });
      },
      drop: ({ spec: { requestId } }, from) => this.#post(from, { kind: "release", requestId }),
      load: (request, target) => this.#launchFromPool(request, target),
      begin: (request, target) => this.#launch(request, target, null),
      migrated: () => this.meter.count("migrations"),
      pooledTokens: ({ spec: { requestId }, residentOn }) =>
        residentOn === null
          ? 0
          : (this.#pooled.blob(requestId, this.#weightsOf(residentOn))?.tokens ?? 0),
    };
  }

  #launchFromPool(request: Request, target: Target): void {
    const blob = this.#pooled.blob(request.spec.requestId, this.#weightsOf(target.workerId));
    if (blob === null) {
      this.#launch(request, target, null);
      return;
    }
    const epoch = this.#epoch;
    void this.#pooled.bytes(blob).then((bytes) => {
      // While the disk was read, the worker may have failed, the request gone back to the buffer or been
      // given up, or the weights changed.
      const isStillWanted =
        request.status === "moving" &&
        request.residentOn === target.workerId &&
        this.#epoch === epoch;
      if (!isStillWanted) return;
      this.#turn(() => {
        if (bytes !== null && request.workerId !== target.workerId) {
          this.meter.count("migrated_bytes", bytes.byteLength);
        }
        this.#launch(request, target, bytes === null ? null : { tokens: blob.tokens, bytes });
      });
    });
  }

  #launch(request: Request, target: Target, kv: KvBlob | null): void {
    const { workerId, chunkTokens } = target;
    this.#executor.start(request, target);
    const startMs = this.#options.clock.nowMs();
    const began = { startMs, tokensMax: chunkTokens, kvTokens: kv?.tokens ?? 0 };
    request.response.openChunk(workerId, this.#epoch, this.#weightsOf(workerId), began);
    request.response.startedMs ??= startMs;
    this.meter.count("chunks");
    this.#chunks.began(request, startMs);
    // The worker must have the request's own text before it adds to it; its siblings' can follow.
    for (const update of this.#registry.dispatched(request, workerId)) this.#post(workerId, update);
    for (const update of this.#registry.catchUp(request, workerId)) this.#post(workerId, update);
    this.#post(workerId, {
      kind: "run",
      request: request.spec,
      output: request.response.tokens().slice(),
      chunkTokens,
      priority: this.#scheduler.isUrgent(request) ? "high" : "low",
      kv,
      draft: this.#registry.source(request),
      ...expertsWanted(request),
    });
  }

  #weightsOf(workerId: WorkerId): WeightsId | null {
    return this.#ledger.worker(workerId)?.weights ?? null;
  }

  #post(workerId: WorkerId, command: WorkerCommand): void {
    this.#outbox.post(workerId, command);
  }

  #flush(): void {
    for (const [workerId, commands] of this.#outbox.take()) {
      const worker = this.#ledger.worker(workerId);
      if (worker === null) continue;
      try {
        worker.send(commands);
      } catch (error) {
        this.#failed(worker, `cannot be sent commands: ${messageOf(error)}`);
        this.#wake();
      }
    }
  }
}

/** Rows `[from, to)` of the alternatives. */
function rows(top: TopLogprobs | null, from: number, to: number): TopLogprobs | null {
  if (top === null) return null;
  const { count, tokens, logprobs } = top;
  const [first, end] = [from * count, to * count];
  return { count, tokens: tokens.subarray(first, end), logprobs: logprobs.subarray(first, end) };
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Of a response that has its last token, whose worker was lost before it reported the end; null: it has not. */
function unreportedEnd({ spec, response }: Request): FinishReason | null {
  const { stopTokenIds, tokensMax } = spec.sampling;
  const last = response.length === 0 ? null : response.tokens(response.length - 1)[0];
  if (last != null && stopTokenIds.includes(last)) return "stop";
  return response.length === tokensMax ? "length" : null;
}
