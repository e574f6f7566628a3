// A rollout as its owner sees it: groups and workers come and go while it runs, generation pauses, weights change. What
// happens in between is the loop's (`loop.ts`), and where each request is the dispatch's (`dispatch.ts`).

import { assert } from "../base/assert.ts";
import type { GroupId, RequestId, WeightEpoch, WorkerId } from "../base/ids.ts";
import type { OpenWait } from "../base/waits.ts";
import {
  type Group,
  type GroupSpec,
  isComplete,
  type RolloutRequest,
  type Wanted,
} from "../request/buffer.ts";
import type { TokenColumn } from "../request/columns.ts";
import type { SavedOutput } from "../request/response.ts";
import type { Paces } from "../schedule/pace.ts";
import type { DriftGuard } from "./drift-guard.ts";
import type { RolloutFeed } from "./events.ts";
import { Loop, type LoopOptions, unreportedEnd } from "./loop.ts";
import type { Meter } from "./meter.ts";
import type { PauseMode } from "./pause.ts";
import { isStale } from "./selection.ts";
import type { EngineWorker } from "./worker.ts";

export type RolloutOptions = LoopOptions;

export interface PreviousTurn {
  readonly request: RolloutRequest;
  /** Number of first tokens of its prompt and response with which the new prompt begins. */
  readonly sharedTokens: number;
}

export class Rollout {
  readonly meter: Meter;
  readonly events: RolloutFeed;
  readonly #loop: Loop;
  readonly #watched = new WeakSet<EngineWorker>();

  constructor(options: RolloutOptions) {
    this.#loop = new Loop(options);
    this.meter = this.#loop.meter;
    this.events = this.#loop.events;
  }

  get epoch(): WeightEpoch {
    return this.#loop.dispatch.epoch;
  }

  /** Requests of all groups that are not complete, finished or not. */
  get requests(): Iterable<RolloutRequest> {
    return this.#loop.requests.requests;
  }

  /** null: its group is complete, or it never was. */
  request(id: RequestId): RolloutRequest | null {
    return this.#loop.requests.request(id);
  }

  get unfinished(): number {
    return this.#loop.requests.unfinished;
  }

  group(id: GroupId): Group | null {
    return this.#loop.requests.group(id);
  }

  /** The length that the scheduler expects of the longest response of an incomplete group; null: nothing is known yet. */
  lengthEstimate(group: Group): number | null {
    return this.#loop.context.learned(group);
  }

  get paces(): Paces {
    return this.#loop.ledger.paces;
  }

  /** Guard that takes drafts from engines that draw otherwise with them. */
  get drift(): DriftGuard {
    return this.#loop.drift;
  }

  /** See ResponseSource. */
  *responses(id: GroupId): Iterable<readonly [sampleIndex: number, tokens: TokenColumn]> {
    const group = this.group(id);
    if (group !== null) yield* this.#loop.registry.responses(group);
  }

  /** Waits for what no other request gives. */
  get waits(): readonly OpenWait[] {
    return this.#loop.waits.open;
  }

  // Workers.

  get workers(): EngineWorker[] {
    return this.#loop.ledger.workers();
  }

  /** Workers on which something runs, or that KV is leaving: they keep a pause from taking hold. */
  get busyWorkers(): EngineWorker[] {
    return this.#loop.dispatch.busyWorkers;
  }

  /** Adds a worker that has the weights of the rollout's epoch, and no other listener. */
  addWorker(worker: EngineWorker): void {
    this.#loop.ledger.add(worker);
    this.meter.worker(worker);
    this.watch(worker);
    this.#loop.turns.wake();
  }

  /** Makes `workerFailed` report the worker from now on. The worker does not serve before it is added. */
  watch(worker: EngineWorker): void {
    if (this.#watched.has(worker)) return;
    this.#watched.add(worker);
    worker.listen(
      (epoch, events) => this.#loop.take(worker, epoch, events),
      (id) => this.#loop.dispatch.running(id, worker.workerId)?.response.tokens() ?? null,
    );
  }

  /** The worker serves no more; its requests continue elsewhere. Its failure is still reported. */
  removeWorker(worker: EngineWorker): void {
    if (!this.#serves(worker)) return;
    this.#loop.turns.run(() => this.#loop.remove(worker));
  }

  /** The worker was removed and does not come back. Requests that only it had room for end. */
  forgetWorker(workerId: WorkerId): void {
    const { turns, ledger, drift } = this.#loop;
    turns.run(() => ledger.forget(workerId));
    this.meter.workerForgotten(workerId);
    drift.forget(workerId);
  }

  /**
   * Sets whether the worker's connection works. While it is lost, running requests there wait for it, no new one is
   * placed there, and requests whose KV is there continue elsewhere without it; of one that `isLeaving`, with it.
   */
  setReachable(worker: EngineWorker, isReachable: boolean, isLeaving = false): void {
    if (!this.#serves(worker)) return;
    const { turns, dispatch, ledger } = this.#loop;
    turns.run(() => {
      if (isReachable && isLeaving) dispatch.vacate(worker.workerId);
      ledger.setReachable(worker.workerId, isReachable, isReachable && !isLeaving);
      if (!isReachable) dispatch.cutOff(worker.workerId);
    });
  }

  #serves(worker: EngineWorker): boolean {
    return this.#loop.ledger.worker(worker.workerId) === worker;
  }

  // Groups and requests.

  /** A group that is complete from the start. */
  submit(spec: GroupSpec): Group {
    const group = this.#loop.requests.add(spec);
    for (const request of group.requests) this.#loop.enter(request);
    return group;
  }

  /** An empty group that requests may `join`. Its id must be free. */
  open(groupId: GroupId, prompt: Int32Array): Group {
    return this.#loop.requests.open(groupId, prompt);
  }

  join(group: Group, wanted: Wanted, previous: PreviousTurn | null = null): RolloutRequest {
    const request = this.#loop.requests.join(group, wanted);
    if (previous !== null) this.#loop.inherit(request, previous.request, previous.sharedTokens);
    this.#loop.enter(request);
    return request;
  }

  /**
   * Gives a request that has just joined what an earlier process generated of it: it continues from there. false: it
   * begins anew, because it must run in one piece, or all its tokens must be of the same weights.
   */
  restore(request: RolloutRequest, saved: SavedOutput): boolean {
    assert(request.status === "waiting" && request.response.length === 0, "it has just joined");
    const canContinue = request.spec.divisible && !isStale(request, saved.chunks, this.epoch);
    if (saved.finish === null && !canContinue) return false;
    const loop = this.#loop;
    loop.turns.run(() => {
      loop.scheduler.remove(request);
      const { response } = request;
      response.restore(saved);
      this.meter.count("resumed_tokens", response.length);
      const end = saved.finish ?? unreportedEnd(request);
      if (end !== null) {
        response.refusal = saved.refusal;
        loop.finish(request, end);
        return;
      }
      if (loop.context.progressed(request)) loop.scheduler.refresh(request.group);
      loop.enqueue(request);
    });
    return true;
  }

  /** Drops the KV that was kept for a further turn of the session. */
  letGo(request: RolloutRequest): void {
    if (request.status !== "finished") return;
    this.#loop.turns.run(() => this.#loop.dispatch.letGo(request));
  }

  /** No request joins the group any more; it is forgotten as soon as all of them are finished. */
  close(group: Group): void {
    if (group.isClosed) return;
    group.isClosed = true;
    if (isComplete(group)) this.#loop.turns.run(() => this.#loop.retire(group));
  }

  /** Ends an unfinished response as it stands. stop: its text is complete (a stop string). */
  end(request: RolloutRequest, reason: "abort" | "stop"): void {
    if (request.status === "finished") return;
    this.#loop.turns.run(() => this.#loop.end(request, reason));
  }

  // Pauses and weights.

  /** null: it runs. */
  get pauseMode(): PauseMode | null {
    return this.#loop.pause.mode;
  }

  /** Whether no request runs and no KV is in transfer. */
  get isQuiet(): boolean {
    return this.#loop.dispatch.isQuiet;
  }

  /** Resolves with true when no request runs (`keep`) or none is left; with false if generation resumed before. */
  async pause(mode: PauseMode): Promise<boolean> {
    const { pause, turns, dispatch } = this.#loop;
    pause.mode = mode;
    if (mode === "keep") {
      turns.run(() => {
        for (const request of this.requests) dispatch.endChunk(request);
      });
      return await pause.until(() => this.isQuiet);
    }
    if (mode === "abort") {
      turns.run(() => {
        for (const request of [...this.requests]) {
          if (request.status !== "finished" && !pause.arrivals.has(request)) {
            this.#loop.end(request, "abort");
          }
        }
      });
    }
    turns.wake();
    return await pause.until(() => this.unfinished === pause.arrivals.size && this.isQuiet);
  }

  resume(): void {
    const { pause, turns } = this.#loop;
    for (const request of pause.resume()) this.#loop.enqueue(request);
    pause.release();
    turns.wake();
  }

  /**
   * Every worker has the weights of `epoch` now. Requests that are not finished go on under them, those that are strict
   * from their first token; KV and drafts of the old ones are dropped, and late tokens refused.
   */
  advance(epoch: WeightEpoch): void {
    assert(epoch > this.epoch, "weight epochs go up");
    const loop = this.#loop;
    loop.turns.run(() => {
      loop.advance(epoch);
      loop.outbox.clear();
      loop.registry.clear();
      loop.displaceAll();
      for (const request of [...this.requests]) {
        if (request.status !== "waiting") continue;
        if (isStale(request, request.response.chunks, epoch)) loop.beginAnew(request);
      }
      for (const { workerId } of this.workers) {
        loop.outbox.post(workerId, { kind: "advance", epoch });
      }
    });
  }

  /** The workers have dropped, or may drop, whatever KV waiting requests have left there. Only while it is quiet. */
  forgetKv(): void {
    assert(this.isQuiet, "nothing runs");
    const { turns, outbox } = this.#loop;
    turns.run(() => {
      for (const { spec, residentOn } of this.requests) {
        if (residentOn === null) continue;
        outbox.post(residentOn, { kind: "release", requestId: spec.requestId });
      }
      this.#loop.displaceAll();
    });
  }

  /** Stops at once: no request is scheduled and no event taken any more. */
  stop(): void {
    this.#loop.turns.stop();
    this.#loop.waits.clear();
  }
}
