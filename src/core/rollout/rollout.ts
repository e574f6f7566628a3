// Carries out what the scheduler decides, on workers, turn by turn, and hands on what they say (`request-life.ts`,
// `kv-moves.ts`, `failures.ts`). It never decides an order or a place. Groups and workers come and go while it runs.
//
// A request: waiting -> (moving, while its KV is on the way) -> running -> waiting ... -> finished.

import { assert } from "../base/assert.ts";
import type { Clock } from "../base/clock.ts";
import { errorText } from "../base/errors.ts";
import type { GroupId, RequestId, WeightEpoch, WorkerId } from "../base/ids.ts";
import { ContextManager, type LengthPrior } from "../context/context.ts";
import type { DraftSource } from "../draft/group-update.ts";
import { type DraftMode, DraftRegistry } from "../draft/registry.ts";
import type { KvPool } from "../kv/pool.ts";
import {
  type Group,
  type GroupSpec,
  isComplete,
  isSuspect,
  type Request,
  RequestBuffer,
  type RequestStatus,
  type Wanted,
} from "../request/buffer.ts";
import { restore, type SavedOutput } from "../request/saved-output.ts";
import { ChunkLength } from "../schedule/chunk-length.ts";
import type { Paces } from "../schedule/pace.ts";
import { type PolicyName, type PolicyParts, schedulerFor } from "../schedule/policies.ts";
import type { ScheduleCommand, Scheduler } from "../schedule/scheduler.ts";
import type { CoreExports } from "../wasm/load.ts";
import type { Target } from "./executor.ts";
import { Failures } from "./failures.ts";
import { KvMoves, type PreviousTurn } from "./kv-moves.ts";
import { Ledger } from "./ledger.ts";
import { contained, type RolloutListener } from "./listener.ts";
import { Meter } from "./meter.ts";
import { Outbox } from "./outbox.ts";
import type { RolloutParts } from "./parts.ts";
import { Pause, type PauseMode } from "./pause.ts";
import { expertsWanted } from "./reports.ts";
import { RequestLife, unreportedEnd } from "./request-life.ts";
import { isStale } from "./selection.ts";
import { SiblingTokens } from "./sibling-tokens.ts";
import type { KvBlob, Worker, WorkerCommand, WorkerEvent } from "./worker.ts";

export interface RolloutOptions {
  readonly policy: PolicyName;
  /** Default: the scheduler of the policy. */
  readonly schedulerFor?: (parts: PolicyParts) => Scheduler;
  readonly draft: DraftMode;
  /** Output tokens of one chunk, >= 1; null: chosen by what its end costs. The `group` policy does not divide. */
  readonly chunkTokens: number | null;
  /** Weight epoch of the workers at the start. */
  readonly epoch: WeightEpoch;
  /** The model's: a worker's token at or beyond it ends the request. Default: any token is taken. */
  readonly vocabularySize?: number;
  readonly pool: KvPool;
  readonly clock: Clock;
  /** Holds the scheduler's heaps. */
  readonly core: CoreExports;
  readonly listener: RolloutListener;
  /** Runs something after a while; returns what cancels it. Absent: what would wait for a while does not. */
  readonly later?: (act: () => void, ms: number) => () => void;
  /** Lengths to be expected in groups whose prompt has a history. */
  readonly lengthPrior?: LengthPrior;
}

export class Rollout {
  readonly meter: Meter;
  readonly #parts: RolloutParts;
  readonly #kv: KvMoves;
  readonly #life: RequestLife;
  readonly #failures: Failures;
  readonly #siblings: SiblingTokens;
  readonly #pause = new Pause();
  /** Workers that are listened to. */
  readonly #watched = new WeakSet<Worker>();
  #epoch: WeightEpoch;
  #isWoken = false;
  #isStopped = false;

  constructor(options: RolloutOptions) {
    const { clock, policy, core, schedulerFor: made = (of) => schedulerFor(policy, of) } = options;
    this.#epoch = options.epoch;
    const buffer = new RequestBuffer((request, from) => this.#moved(request, from));
    const context = new ContextManager(options.lengthPrior);
    const chunks = new ChunkLength(options.chunkTokens);
    const ledger = new Ledger(clock);
    const parts: RolloutParts = {
      buffer,
      context,
      chunks,
      scheduler: made({ buffer, context, chunks, core }),
      registry: new DraftRegistry(options.draft),
      ledger,
      outbox: new Outbox(),
      meter: new Meter(
        clock,
        () => buffer.requests,
        (group) => context.learned(group),
        ledger,
      ),
      listener: contained(options.listener, (error, request) => this.#threw(error, request)),
      clock,
      epoch: () => this.#epoch,
      turn: (act) => this.#turn(act),
      wait: (request) => this.#wait(request),
    };
    this.#parts = parts;
    this.meter = parts.meter;
    this.#siblings = new SiblingTokens(clock, parts.registry, parts.outbox);
    this.#kv = new KvMoves(parts, options.pool, (request, target, kv) =>
      this.#launch(request, target, kv),
    );
    this.#failures = new Failures(parts, options.later, (request, message) =>
      this.#reject(request, message),
    );
    this.#life = new RequestLife(parts, {
      kv: this.#kv,
      failures: this.#failures,
      vocabularySize: options.vocabularySize ?? Number.POSITIVE_INFINITY,
      failed: (worker, message) => this.#failed(worker, message),
    });
  }

  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  /** Requests of all groups that are not complete, finished or not. */
  get requests(): Iterable<Request> {
    return this.#parts.buffer.requests;
  }

  /** null: its group is complete, or it never was. */
  request(id: RequestId): Request | null {
    return this.#parts.buffer.request(id);
  }

  /** The length that the scheduler expects of the longest response of an incomplete group; null: nothing is known yet. */
  lengthEstimate(group: Group): number | null {
    return this.#parts.context.learned(group);
  }

  /** null: it runs. */
  get pauseMode(): PauseMode | null {
    return this.#pause.mode;
  }

  /** How fast workers step. */
  get paces(): Paces {
    return this.#parts.ledger.paces;
  }

  /** Requests that are not finished. */
  get unfinished(): number {
    return this.#parts.buffer.unfinished;
  }

  /** The draft group of the request, and its sequence there; null: none. */
  draftSource(request: Request): DraftSource | null {
    return this.#parts.registry.source(request);
  }

  /** The request that owns a sequence of a draft group; null: none, or its beginning was taken back. */
  draftOwner(source: DraftSource): Request | null {
    return this.#parts.registry.ownerOf(source, (id) => this.#parts.buffer.group(id));
  }

  get workers(): Worker[] {
    return this.#parts.ledger.workers();
  }

  /** Workers on which something runs, or that KV is leaving: they keep a pause from taking hold. */
  get busyWorkers(): Worker[] {
    const { sources } = this.#kv.executor;
    return this.#parts.ledger
      .workers()
      .filter(({ workerId }) => sources.has(workerId) || this.#parts.ledger.isBusy(workerId));
  }

  group(id: GroupId): Group | null {
    return this.#parts.buffer.group(id);
  }

  /** Adds a worker that has the weights of the rollout's epoch, and no other listener. */
  addWorker(worker: Worker): void {
    this.#parts.ledger.add(worker);
    this.meter.worker(worker);
    this.watch(worker);
    this.#wake();
  }

  /** Makes `workerFailed` report the worker from now on. The worker does not serve before it is added. */
  watch(worker: Worker): void {
    if (this.#watched.has(worker)) return;
    this.#watched.add(worker);
    worker.listen((epoch, events) => this.#receive(worker, epoch, events));
  }

  /** The worker serves no more; its requests continue elsewhere. Its failure is still reported. */
  removeWorker(worker: Worker): void {
    if (this.#parts.ledger.worker(worker.workerId) !== worker) return;
    this.#turn(() => this.#remove(worker));
  }

  /** The worker was removed and does not come back. Requests that only it had room for end. */
  forgetWorker(workerId: WorkerId): void {
    this.#turn(() => this.#parts.ledger.forget(workerId));
    this.meter.workerForgotten(workerId);
  }

  /**
   * Sets whether the worker's connection works. While it is lost, running requests there wait for it, no new one is
   * placed there, and requests whose KV is there continue elsewhere without it; of one that `isLeaving`, with it.
   */
  setReachable(worker: Worker, isReachable: boolean, isLeaving = false): void {
    if (this.#parts.ledger.worker(worker.workerId) !== worker) return;
    this.#turn(() => {
      if (isReachable && isLeaving) this.#kv.vacate(worker.workerId);
      this.#parts.ledger.setReachable(worker.workerId, isReachable, isReachable && !isLeaving);
      if (!isReachable) this.#kv.cutOff(worker.workerId);
    });
  }

  /** A group that is complete from the start. */
  submit(spec: GroupSpec): Group {
    const group = this.#parts.buffer.add(spec);
    for (const request of group.requests) this.#enter(request);
    return group;
  }

  /** An empty group that requests may `join`. Its id must be free. */
  open(groupId: GroupId, prompt: Int32Array): Group {
    return this.#parts.buffer.open(groupId, prompt);
  }

  join(group: Group, wanted: Wanted, previous: PreviousTurn | null = null): Request {
    const request = this.#parts.buffer.join(group, wanted);
    if (previous !== null) this.#kv.inherit(request, previous);
    this.#enter(request);
    return request;
  }

  /**
   * Gives a request that has just joined what an earlier process generated of it: it continues from there. false: it
   * begins anew, because it must run in one piece, or all its tokens must be of the same weights.
   */
  restore(request: Request, saved: SavedOutput): boolean {
    assert(request.status === "waiting" && request.response.length === 0, "it has just joined");
    const canContinue = request.spec.divisible && !isStale(request, saved.chunks, this.#epoch);
    if (saved.finish === null && !canContinue) return false;
    this.#turn(() => {
      this.#parts.scheduler.remove(request);
      const { response } = request;
      restore(response, saved);
      this.meter.count("resumed_tokens", response.length);
      const end = saved.finish ?? unreportedEnd(request);
      if (end !== null) {
        response.refusal = saved.refusal;
        this.#life.finish(request, end);
        return;
      }
      if (this.#parts.context.progressed(request)) this.#parts.scheduler.refresh(request.group);
      this.#wait(request);
    });
    return true;
  }

  /** Drops the KV that was kept for a further turn of the session. */
  letGo(request: Request): void {
    if (request.status !== "finished") return;
    this.#turn(() => this.#kv.letGo(request));
  }

  /** No request joins the group any more; it is forgotten as soon as all of them are finished. */
  close(group: Group): void {
    if (group.isClosed) return;
    group.isClosed = true;
    if (isComplete(group)) this.#turn(() => this.#life.retire(group));
  }

  /**
   * Ends a response as it stands. abort: it is given up. stop: its text is complete (a stop string). deadline: of its client.
   * Nothing happens if it is finished.
   */
  end(request: Request, reason: "abort" | "stop" | "deadline"): void {
    if (request.status === "finished" || this.#isStopped) return;
    this.#turn(() => this.#life.cut(request, reason));
  }

  /**
   * Pauses generation. Resolves with true when no request runs (`keep`) or none is left (`wait`, `abort`); with false
   * if generation resumed before.
   */
  async pause(mode: PauseMode): Promise<boolean> {
    this.#pause.mode = mode;
    if (mode === "keep") {
      this.#turn(() => this.#life.parkAll());
      return await this.#pause.until(() => this.isQuiet);
    }
    if (mode === "abort") {
      this.#turn(() => {
        for (const request of [...this.#parts.buffer.requests]) {
          if (request.status !== "finished" && !this.#pause.arrivals.has(request)) {
            this.#life.cut(request, "abort");
          }
        }
      });
    }
    this.#wake();
    return await this.#pause.until(
      () => this.#parts.buffer.unfinished === this.#pause.arrivals.size && this.isQuiet,
    );
  }

  resume(): void {
    for (const request of this.#pause.resume()) this.#wait(request);
    this.#pause.release();
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
      this.#failures.advanced();
      this.#parts.outbox.clear();
      this.#parts.registry.clear();
      this.#displaceAll();
      for (const request of [...this.#parts.buffer.requests]) {
        if (request.status !== "waiting") continue;
        if (isStale(request, request.response.chunks, epoch)) this.#life.beginAnew(request);
      }
      for (const worker of this.#parts.ledger.workers()) {
        this.#post(worker.workerId, { kind: "advance", epoch });
      }
    });
  }

  /** The workers have dropped, or may drop, whatever KV waiting requests have left there. Only while it is quiet. */
  forgetKv(): void {
    assert(this.isQuiet, "nothing runs");
    this.#turn(() => {
      for (const { spec, residentOn } of this.#parts.buffer.requests) {
        if (residentOn === null) continue;
        this.#post(residentOn, { kind: "release", requestId: spec.requestId });
      }
      this.#displaceAll();
    });
  }

  /** Stops at once: no request is scheduled and no event taken any more. */
  stop(): void {
    this.#isStopped = true;
  }

  #displaceAll(): void {
    this.#kv.clear();
    for (const request of [...this.#parts.buffer.requests]) this.#life.unplace(request);
  }

  #enter(request: Request): void {
    request.response.joinedMs = this.#parts.clock.nowMs();
    this.#parts.context.joined(request);
    this.#parts.scheduler.refresh(request.group);
    this.meter.requestJoined(request, this.#epoch);
    this.#failures.joined(request);
    if (this.#pause.mode !== null) this.#pause.arrivals.add(request);
    this.#wait(request);
    this.#wake();
  }

  /** The hook of every change of status: a request that waits is scheduled, one that is given up waits no more. */
  #moved(request: Request, from: RequestStatus): void {
    if (request.status === "waiting") this.#wait(request);
    else if (request.status === "finished" && from === "waiting") {
      this.#pause.arrivals.delete(request);
      this.#parts.scheduler.remove(request);
    }
  }

  /** A request waits: it is scheduled unless it came in a pause, or its worker has just died. */
  #wait(request: Request): void {
    const isHeld = this.#pause.arrivals.has(request) || this.#failures.holds(request);
    if (!isHeld) this.#parts.scheduler.enqueue(request);
  }

  #receive(worker: Worker, epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (this.#isStopped) return;
    const isCurrent = epoch === this.#epoch;
    this.meter.turn();
    this.#turn(() => {
      for (const event of events) {
        if (event.kind === "failed") this.#failed(worker, event.message, event.isCut);
        // A late message: of weights that are no longer current, or of a removed worker.
        else if (isCurrent && this.#parts.ledger.worker(worker.workerId) === worker) {
          this.#take(worker, event);
        }
      }
    });
  }

  #take(worker: Worker, event: Exclude<WorkerEvent, { kind: "failed" }>): void {
    const { workerId } = worker;
    switch (event.kind) {
      case "tokens":
        this.#life.tokens(worker, event);
        return;
      case "chunk_done":
        this.#life.chunkDone(worker, event);
        return;
      case "exported":
        this.#kv.exported(event.requestId, event.kv, workerId);
        return;
      case "evicted":
        this.#kv.evicted(workerId, this.#parts.buffer.request(event.requestId));
        return;
      case "stats":
        this.meter.stats(workerId, event.stats);
        this.#parts.ledger.preempted(workerId, event.stats.preemptions);
        this.#parts.ledger.counted(workerId, event.stats);
        this.#parts.listener.stats(workerId, event.stats);
        return;
      case "gap": {
        const request = this.draftOwner(event);
        if (request !== null) this.#parts.registry.missing(request, workerId, event.offset);
        return;
      }
      case "preempted": {
        const run = this.#life.running(event.requestId, workerId)?.response.lastChunk?.run;
        if (run) run.preemptions += 1;
        return;
      }
      case "advanced":
        return;
    }
  }

  /** The owner of a worker gets its failure even if the worker does not serve, or not any more. */
  #failed(worker: Worker, message: string, isCut = false): void {
    if (isCut) this.removeWorker(worker);
    else if (this.#parts.ledger.worker(worker.workerId) === worker) {
      const running = [...this.#parts.buffer.requests].filter(
        ({ status, workerId }) => status === "running" && workerId === worker.workerId,
      );
      const report = message.startsWith(worker.name) ? message : `${worker.name}: ${message}`;
      this.#failures.died(report, running, () => this.#remove(worker));
    }
    this.#parts.listener.workerFailed(worker, message);
  }

  #reject(request: Request, message: string): void {
    // The refusal of another response has ended it.
    if (request.status === "finished") return;
    request.response.refusal = { status: 502, message };
    this.meter.count("quarantined_requests");
    this.#parts.listener.quarantined(request);
    this.#life.cut(request, "abort");
  }

  /** Requests that the worker ran go back to the buffer and are recomputed elsewhere. */
  #remove({ workerId }: Worker): void {
    this.#parts.ledger.remove(workerId);
    this.meter.workerGone(workerId);
    this.#parts.registry.forget(workerId);
    this.#parts.outbox.drop(workerId);
    this.#kv.cutOff(workerId);
    for (const request of [...this.#parts.buffer.requests]) {
      if (request.residentOn === workerId) this.#life.unplace(request);
    }
  }

  /** A listener failed at something: that is no reason to stop for the requests of others. */
  #threw(error: unknown, request: Request | null): void {
    if (request !== null && request.status !== "finished") {
      const message = `the server failed at this request: ${errorText(error)}`;
      request.response.refusal = { status: 500, message };
      this.#life.cut(request, "abort");
    }
    this.#parts.listener.threw(error, request);
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
   * An exception here is a bug in the state that all requests share: the rollout stops. Errors of one listener
   * (`contained`), one worker (`#flush`) or the KV pool (`PooledKv`) are caught where they arise.
   */
  #guarded(act: () => void): void {
    if (this.#isStopped) return;
    try {
      act();
    } catch (error) {
      this.#isStopped = true;
      this.#parts.listener.broken(error);
    }
  }

  #pump(): void {
    this.#failures.rejectJoined();
    const { clock, ledger, scheduler } = this.#parts;
    if (this.#pause.mode !== "keep") {
      const commands = scheduler.schedule(ledger.slots(), ledger.kvTokensMax, clock.nowMs());
      for (const command of commands) this.#execute(command);
    }
    this.#siblings.post();
    this.#flush();
    this.#pause.resolveOver();
  }

  /** Whether no request runs and no KV is in transfer. */
  get isQuiet(): boolean {
    return this.#parts.ledger.inFlight === 0 && this.#kv.executor.isStill;
  }

  #execute(command: ScheduleCommand): void {
    const { request } = command;
    if (command.kind === "reject") {
      const needs = `request ${request.spec.requestId} needs ${command.kvTokensNeeded} tokens of KV`;
      const message = `${needs}, and the largest worker has ${this.#parts.ledger.kvTokensMax}`;
      request.response.refusal = { status: 502, message };
      this.#life.cut(request, "abort");
      return;
    }
    if (command.kind === "dispatch" && isSuspect(request)) {
      this.#parts.ledger.suspect(command.workerId, request);
    }
    if (command.kind === "dispatch") this.#parts.buffer.move(request, "moving");
    this.#kv.executor.execute(command);
  }

  #launch(request: Request, target: Target, kv: KvBlob | null): void {
    const { workerId, chunkTokens } = target;
    const worker = this.#parts.ledger.worker(workerId);
    const weights = worker?.weights ?? null;
    this.#kv.executor.start(request, target);
    this.#parts.buffer.move(request, "running");
    const startMs = this.#parts.clock.nowMs();
    const began = { startMs, tokensMax: chunkTokens, kvTokens: kv?.tokens ?? 0 };
    request.response.openChunk(workerId, this.#epoch, weights, began);
    request.response.startedMs ??= startMs;
    this.meter.count("chunks");
    this.#parts.chunks.began(request, startMs);
    if (worker !== null) this.#siblings.begin(request, worker);
    this.#post(workerId, {
      kind: "run",
      request: request.spec,
      output: request.response.copied(),
      chunkTokens,
      priority: this.#parts.scheduler.isUrgent(request) ? "high" : "low",
      kv,
      draft: this.meter.drift.mayDraft(workerId) ? this.#parts.registry.source(request) : null,
      ...expertsWanted(request),
    });
    if (this.#pause.mode === "keep") this.#life.park(request);
  }

  #post(workerId: WorkerId, command: WorkerCommand): void {
    this.#parts.outbox.post(workerId, command);
  }

  #flush(): void {
    for (const [workerId, commands] of this.#parts.outbox.take()) {
      const worker = this.#parts.ledger.worker(workerId);
      if (worker === null) continue;
      try {
        worker.send(commands);
      } catch (error) {
        this.#failed(worker, `cannot be sent commands: ${errorText(error)}`);
        this.#wake();
      }
    }
  }
}
