// The loop of a rollout, in the order in which it goes: a turn schedules and dispatches, workers' events are taken in, and
// responses end or wait again. It decides no order and no place (`schedule`), and moves no request: `dispatch.ts` does.
//
//   turn:     commands = scheduler.schedule(slots);  for each: dispatch.execute(command);  send what is in the outbox
//   take:     tokens -> appended by offset; chunk_done -> goes on, or ends; failed -> what ran there waits again
//   end:      finish(request) -> its group, once complete, is retired

import type { Clock } from "../base/clock.ts";
import { errorText } from "../base/errors.ts";
import type { WeightEpoch } from "../base/ids.ts";
import { waitMsMax } from "../base/waits.ts";
import { ContextManager, type LengthPrior } from "../context/context.ts";
import { type DraftMode, DraftRegistry } from "../draft/registry.ts";
import type { KvPool } from "../kv/pool.ts";
import {
  type Group,
  isComplete,
  RequestBuffer,
  type Requests,
  type RolloutRequest,
} from "../request/buffer.ts";
import type { FinishReason } from "../request/request.ts";
import { ChunkLength } from "../schedule/chunk-length.ts";
import { type PolicyName, type PolicyParts, schedulerFor } from "../schedule/policies.ts";
import type { RejectCommand, Scheduler } from "../schedule/scheduler.ts";
import type { CoreExports } from "../wasm/load.ts";
import { Dispatch } from "./dispatch.ts";
import { DriftGuard } from "./drift-guard.ts";
import { RolloutFeed, type RolloutReader } from "./events.ts";
import { Failures, type Verdict } from "./failures.ts";
import { Ledger } from "./ledger.ts";
import { Meter } from "./meter.ts";
import { Pause } from "./pause.ts";
import { lacksReports, takeReports } from "./reports.ts";
import { problemOf } from "./token-check.ts";
import { Outbox, Turns } from "./turns.ts";
import { BoundedWaits, type LastingWait } from "./waits.ts";
import type { EngineWorker, WorkerEvent } from "./worker.ts";

export interface PromptsHistory {
  readonly prior: LengthPrior;
  /** Responses to the group's prompt, the latest epoch's first. */
  past(group: Group): readonly Int32Array[];
}

export interface LoopOptions {
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
  /** The owner, to whom all requests belong. */
  readonly listener: RolloutReader<unknown>;
  /** Runs something after a while; returns what cancels it. Absent: what would wait for a while does not. */
  readonly later?: (act: () => void, ms: number) => () => void;
  /** What earlier weight epochs made of the groups' prompts. */
  readonly history?: PromptsHistory;
}

/** A strict response begins anew so often at most: with more updates than that in its time it would never end. */
const STRICT_RESTARTS_MAX = 16;

const BAD_GATEWAY = 502;
const UNAVAILABLE = 503;

export class Loop {
  readonly requests: Requests;
  readonly ledger: Ledger;
  readonly context: ContextManager;
  readonly scheduler: Scheduler;
  readonly registry: DraftRegistry;
  readonly drift = new DriftGuard();
  readonly meter: Meter;
  readonly pause = new Pause();
  readonly turns: Turns;
  readonly waits: BoundedWaits;
  readonly dispatch: Dispatch;
  readonly outbox = new Outbox();
  readonly #clock: Clock;
  readonly #later: LoopOptions["later"];
  readonly events: RolloutFeed;
  readonly #failures: Failures;
  readonly #chunks: ChunkLength;
  readonly #vocabularySize: number;

  constructor(options: LoopOptions) {
    const { clock, core, pool, epoch, schedulerFor: given } = options;
    const { outbox, drift, pause } = this;
    const { later, history } = options;
    this.#clock = clock;
    this.#later = later;
    this.#vocabularySize = options.vocabularySize ?? Number.POSITIVE_INFINITY;
    const threw = (error: unknown, request: RolloutRequest | null) => this.#threw(error, request);
    this.events = new RolloutFeed(options.listener, threw);
    this.turns = new Turns(
      () => this.#turn(),
      (error) => this.events.tell((reader) => reader.broken?.(error)),
    );
    const giveUp = (state: LastingWait, message: string) => this.#giveUp(state, message);
    const ended = (message: string) => this.events.tell((reader) => reader.waitEnded?.(message));
    this.waits = new BoundedWaits({ clock, later, turns: this.turns, giveUp, ended });
    const buffer = new RequestBuffer();
    this.requests = buffer;
    this.context = new ContextManager(history?.prior);
    this.#chunks = new ChunkLength(options.chunkTokens);
    const parts = { buffer, context: this.context, chunks: this.#chunks, core };
    this.scheduler = given?.(parts) ?? schedulerFor(options.policy, parts);
    this.ledger = new Ledger(clock);
    this.registry = new DraftRegistry({
      mode: options.draft,
      clock,
      post: (workerId, update) => outbox.post(workerId, update),
      past: (group) => history?.past(group) ?? [],
    });
    const learned = (group: Group) => this.context.learned(group);
    this.meter = new Meter(clock, () => buffer.requests, learned, this.ledger);
    this.#failures = new Failures(clock);
    this.dispatch = new Dispatch({
      buffer,
      scheduler: this.scheduler,
      ledger: this.ledger,
      pool,
      outbox,
      registry: this.registry,
      drift,
      chunks: this.#chunks,
      pause,
      meter: this.meter,
      clock,
      turns: this.turns,
      waits: this.waits,
      epoch,
    });
  }

  // The turn.

  /** Dispatches requests that wait, and sends workers their commands: every turn ends with it. */
  #turn(): void {
    for (const refused of this.#failures.refused()) this.#reject(refused);
    const { ledger, scheduler } = this;
    const slots = this.pause.mode === "keep" ? null : ledger.slots();
    if (slots !== null) {
      for (const command of scheduler.schedule(slots, ledger.kvTokensMax, this.#clock.nowMs())) {
        if (command.kind === "reject") this.#tooLarge(command);
        else this.dispatch.execute(command);
      }
    }
    // During a pause they wait for its end alone: engines may come and go meanwhile.
    this.waits.lasts("no_open_worker", slots?.length === 0 && this.requests.unfinished > 0);
    this.waits.lasts("no_large_worker", slots !== null && scheduler.stranded.size > 0);
    this.waits.lasts("paused_too_long", this.pause.mode !== null && this.requests.unfinished > 0);
    this.registry.post();
    this.#send();
    this.pause.resolveOver();
  }

  #send(): void {
    for (const [workerId, commands] of this.outbox.take()) {
      const worker = this.ledger.worker(workerId);
      if (worker === null) continue;
      try {
        worker.send(commands);
      } catch (error) {
        this.#failed(worker, `cannot be sent commands: ${errorText(error)}`);
        this.turns.wake();
      }
    }
  }

  enter(request: RolloutRequest): void {
    request.response.joinedMs = this.#clock.nowMs();
    this.context.joined(request);
    this.scheduler.refresh(request.group);
    this.meter.requestJoined(request, this.dispatch.epoch);
    this.#failures.joined(request);
    if (this.pause.mode !== null) this.pause.arrivals.add(request);
    this.enqueue(request);
    this.turns.wake();
  }

  /** The request, which is about to enter, is the next turn of a session and begins with tokens of the turn before. */
  inherit(next: RolloutRequest, from: RolloutRequest, sharedTokens: number): void {
    next.turn = from.turn + 1;
    this.context.continued(next, from);
    if (from.status !== "finished") return;
    const gapMs = this.#clock.nowMs() - (from.response.finishedMs ?? 0);
    this.scheduler.sessions.returns.came(gapMs, next.tool ?? from.tool);
    next.tool ??= from.tool;
    this.dispatch.inherit(next, from, sharedTokens);
  }

  /** A request waits: it is scheduled unless it came in a pause, or its worker has just died. */
  enqueue(request: RolloutRequest): void {
    const isHeld = this.pause.arrivals.has(request) || this.#failures.holds(request);
    if (!isHeld) this.scheduler.enqueue(request);
  }

  // Events of workers.

  take(worker: EngineWorker, epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    if (this.turns.isStopped) return;
    const isCurrent = epoch === this.dispatch.epoch;
    this.meter.turn();
    this.turns.run(() => {
      for (const event of events) {
        if (event.kind === "failed") this.#failed(worker, event.message);
        // A late message: of weights that are no longer current, or of a removed worker.
        else if (isCurrent && this.ledger.worker(worker.workerId) === worker) {
          this.#take(worker, event);
        }
      }
    });
  }

  #take(worker: EngineWorker, event: Exclude<WorkerEvent, { kind: "failed" }>): void {
    const { workerId } = worker;
    switch (event.kind) {
      case "tokens":
        this.#tokens(worker, event);
        return;
      case "chunk_done":
        this.#chunkDone(worker, event);
        return;
      case "exported":
        this.dispatch.exported(event.requestId, event.kv, workerId);
        return;
      case "evicted":
        this.dispatch.evicted(workerId, this.requests.request(event.requestId));
        return;
      case "stats":
        this.meter.stats(workerId, event.stats);
        this.ledger.preempted(workerId, event.stats.preemptions);
        this.ledger.counted(workerId, event.stats);
        this.events.tell((reader) => reader.stats?.(workerId, event.stats));
        return;
      case "gap": {
        const { groupId, sampleIndex, offset } = event;
        const group = this.requests.group(groupId);
        if (group !== null) this.registry.missing(group, sampleIndex, workerId, offset);
        return;
      }
      case "preempted": {
        const run = this.dispatch.running(event.requestId, workerId)?.response.lastChunk?.run;
        if (run) run.preemptions += 1;
        return;
      }
      case "advanced":
        return;
    }
  }

  #tokens(worker: EngineWorker, event: Extract<WorkerEvent, { kind: "tokens" }>): void {
    const { meter } = this;
    const { workerId } = worker;
    const request = this.dispatch.running(event.requestId, workerId);
    if (request === null) {
      meter.count("late_tokens", event.tokens.length);
      return;
    }
    const { response } = request;
    const problem = problemOf(event, response, this.#vocabularySize);
    if (problem !== null) {
      // The worker itself goes on.
      response.refusal = { status: BAD_GATEWAY, message: `${worker.name} gave ${problem}` };
      this.end(request, "abort");
      return;
    }
    const from = response.length;
    const result = response.append(event.offset, event.tokens, event.logprobs, event.top);
    if (result.kind === "gap") {
      meter.count("lost_tokens", result.missing);
      this.#failed(worker, `lost ${result.missing} tokens of request ${event.requestId}`);
      return;
    }
    if (result.repeated > 0) meter.count("duplicated_tokens", result.repeated);
    // A batch that comes twice is seen once: `append` took nothing of it, and nobody is called.
    if (result.fresh === 0) return;
    meter.tokens(workerId, result.fresh);
    response.firstTokenMs ??= meter.turnMs;
    response.lastTokenMs = meter.turnMs;
    this.ledger.generated(workerId, result.fresh);
    this.dispatch.reached(request);
    this.#failures.progressed(request);
    if (this.context.progressed(request)) this.scheduler.refresh(request.group);
    this.registry.generated(request);
    const chunk = response.lastChunk;
    if (chunk?.offset === from) {
      if (chunk.run) chunk.run.firstTokenMs = meter.turnMs;
      this.#chunks.continued(request, this.#clock.nowMs());
    }
    this.events.tokens(request, from);
  }

  #chunkDone(worker: EngineWorker, event: Extract<WorkerEvent, { kind: "chunk_done" }>): void {
    const request = this.dispatch.running(event.requestId, worker.workerId);
    if (request === null) return;
    const { response, spec } = request;
    if (event.finish === null && response.length === response.tokensMax) {
      this.#failed(worker, `left request ${event.requestId} open, which has all its tokens`);
      return;
    }
    if (response.chunks.length === 1) {
      response.promptTokensCached = event.promptTokensCached ?? null;
    }
    const problem = takeReports(request, event);
    if (problem !== null) {
      this.#failed(worker, `the experts of request ${event.requestId} ${problem}`);
      return;
    }
    const run = response.lastChunk?.run;
    if (run) run.drafts = event.drafts ?? null;
    if (this.drift.compares(spec)) this.#compareDraws(request, worker);
    response.closeChunk(this.meter.turnMs, event.finish);
    if (event.finish === null) {
      this.#chunks.ended(request, this.#clock.nowMs());
      this.dispatch.goesOn(request);
      this.enqueue(request);
      return;
    }
    response.refusal = event.refusal ?? null;
    const keeps = spec.keepsKv === true && worker.keepsKv === true && event.finish !== "abort";
    if (keeps) this.dispatch.retain(request);
    else this.dispatch.freed(request);
    this.finish(request, event.finish);
  }

  /** The chunk's tokens say more on whether drafts change what its engine draws. */
  #compareDraws(request: RolloutRequest, worker: EngineWorker): void {
    const { meter, registry, drift } = this;
    const hasDrafts = registry.source(request) !== null && meter.hasDrafted(worker);
    const reason = drift.ended(request, hasDrafts, meter.turnMs);
    if (reason === null) return;
    if (!drift.mayDraft(worker.workerId)) meter.count("draft_alarms");
    this.events.tell((reader) => reader.draftsOff?.(worker, reason));
  }

  // A worker is gone.

  /** The owner of a worker gets its failure even if the worker does not serve, or not any more. */
  #failed(worker: EngineWorker, message: string): void {
    if (this.ledger.worker(worker.workerId) === worker) this.#died(worker, message);
    this.events.tell((reader) => reader.workerFailed?.(worker, message));
  }

  #died(worker: EngineWorker, message: string): void {
    const running = [...this.requests.requests].filter(
      ({ status, workerId }) => status === "running" && workerId === worker.workerId,
    );
    const report = message.startsWith(worker.name) ? message : `${worker.name}: ${message}`;
    const spent = this.#failures.died(report, running);
    if (this.#later !== undefined) this.#failures.hold(running);
    this.remove(worker);
    for (const request of spent) this.#failures.verdicts(request).forEach(this.#reject, this);
    const retry = () => {
      for (const request of this.#failures.release(running)) this.enqueue(request);
    };
    // If all workers are killed, as at a shutdown, the next one dies without them.
    this.#later?.(() => this.turns.run(retry), waitMsMax("retry"));
  }

  /** Requests that the worker ran go back to the buffer and are recomputed elsewhere. */
  remove({ workerId }: EngineWorker): void {
    this.ledger.remove(workerId);
    this.meter.workerGone(workerId);
    this.registry.forget(workerId);
    this.outbox.drop(workerId);
    this.dispatch.cutOff(workerId);
    for (const request of [...this.requests.requests]) {
      if (request.residentOn === workerId) this.#unplace(request);
    }
  }

  /** No worker holds anything of any request any more. */
  displaceAll(): void {
    this.dispatch.clear();
    for (const request of [...this.requests.requests]) this.#unplace(request);
  }

  /** The request has lost what it had on a worker; if it ran, it waits again. */
  #unplace(request: RolloutRequest): void {
    const { response, spec, status } = request;
    const hasRun = status === "moving" || status === "running";
    if (hasRun) response.closeChunk(this.#clock.nowMs(), "lost");
    this.dispatch.lost(request);
    if (!hasRun) {
      this.scheduler.unparked(request);
      return;
    }
    const end = unreportedEnd(request);
    if (end !== null && !lacksReports(request)) {
      this.finish(request, end);
      return;
    }
    const canContinue = end === null && spec.divisible;
    const isRestarted = !canContinue && response.length > 0;
    if (isRestarted) this.#restart(request);
    this.dispatch.waits(request);
    this.enqueue(request);
    if (isRestarted) this.#tellRestarted(request);
  }

  /** A strict request that waits has tokens of weights that are no longer current, and nothing on a worker. */
  beginAnew(request: RolloutRequest): void {
    const { response } = request;
    if (response.chunks.length === 0) return;
    if (response.restarts >= STRICT_RESTARTS_MAX) {
      const message = `the weights changed ${response.restarts + 1} times before it was finished, and all its tokens must be of the same`;
      response.refusal = { status: 409, message };
      this.end(request, "abort");
      return;
    }
    // The request's place in the order depends on its length.
    this.scheduler.remove(request);
    this.#restart(request);
    this.enqueue(request);
    this.#tellRestarted(request);
  }

  #restart(request: RolloutRequest): void {
    this.meter.restarted(request.response.length);
    request.response.restart();
    this.registry.restarted(request);
  }

  advance(epoch: WeightEpoch): void {
    this.dispatch.advance(epoch);
    this.#failures.advanced();
  }

  // Ends.

  end(request: RolloutRequest, reason: "abort" | "stop"): void {
    if (reason !== "stop" || !this.dispatch.park(request)) this.dispatch.release(request);
    this.finish(request, reason);
  }

  /** The response is complete, or given up; what the request held on a worker has been given back already. */
  finish(request: RolloutRequest, reason: FinishReason): void {
    const { group, response, status } = request;
    response.finish = reason;
    response.finishedMs = this.#clock.nowMs();
    response.closeChunk(response.finishedMs, reason);
    this.dispatch.finish(request);
    if (status === "waiting") {
      this.pause.arrivals.delete(request);
      this.scheduler.remove(request);
    }
    if (reason === "abort") this.context.aborted(request);
    else this.context.finished(request);
    this.#failures.ended(request, reason !== "abort");
    this.scheduler.refresh(group);
    this.meter.requestFinished(request);
    this.events.finished(request);
    if (isComplete(group)) this.retire(group);
  }

  /** All requests of a closed group have finished. */
  retire(group: Group): void {
    // A listener that ended the others when one had finished has retired it.
    if (this.requests.group(group.groupId) !== group) return;
    this.registry.retired(group);
    for (const request of group.requests) {
      if (request.spec.keepsKv === true) this.dispatch.letGo(request);
    }
    this.events.tell((reader) => reader.groupFinished?.(group));
    this.scheduler.forget(group);
    this.context.forget(group);
    this.requests.remove(group);
  }

  #reject({ request, message }: Verdict): void {
    // The refusal of another response has ended it.
    if (request.status === "finished") return;
    request.response.refusal = { status: BAD_GATEWAY, message };
    this.meter.count("quarantined_requests");
    this.events.tell((reader) => reader.quarantined?.(request));
    this.end(request, "abort");
  }

  #tooLarge({ request, kvTokensNeeded }: RejectCommand): void {
    const needs = `request ${request.spec.requestId} needs ${kvTokensNeeded} tokens of KV`;
    const message = `${needs}, and the largest worker has ${this.ledger.kvTokensMax}`;
    request.response.refusal = { status: BAD_GATEWAY, message };
    this.end(request, "abort");
  }

  /** The state has held responses up for as long as it may. */
  #giveUp(state: LastingWait, message: string): void {
    const { scheduler, requests } = this;
    const waiting = state === "no_large_worker" ? scheduler.stranded : requests.requests;
    for (const request of [...waiting]) {
      if (request.status !== "waiting") continue;
      request.response.refusal = { status: UNAVAILABLE, message, code: state };
      this.end(request, "abort");
    }
  }

  /** A reader failed at something: that is no reason to stop for the requests of others. */
  #threw(error: unknown, request: RolloutRequest | null): void {
    this.events.threw(error, request);
    if (request === null || request.status === "finished") return;
    const message = `the server failed at this request: ${errorText(error)}`;
    request.response.refusal = { status: 500, message };
    this.end(request, "abort");
  }

  #tellRestarted(request: RolloutRequest): void {
    this.events.tell((reader) => reader.restarted?.(request), request);
  }
}

/** The end of a response whose worker, or sidecar, was lost after its last token and before the report; null: it goes on. */
export function unreportedEnd({ spec, response }: RolloutRequest): FinishReason | null {
  const { stopTokenIds, tokensMax } = spec.sampling;
  const last = response.length === 0 ? null : response.tokens(response.length - 1)[0];
  if (last != null && stopTokenIds.includes(last)) return "stop";
  return response.length === tokensMax ? "length" : null;
}
