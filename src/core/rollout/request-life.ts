// The life of a request between its dispatch and its end: tokens come in, chunks end, the response finishes, or what it
// has is lost and it waits again. It owns no request and decides no order; it passes each change on to the scheduler.

import type { RequestId, WorkerId } from "../base/ids.ts";
import { contextTokens, type Group, isComplete, type Request } from "../request/buffer.ts";
import { type FinishReason, isCut, type ResponseEnd } from "../request/request.ts";
import type { Failures } from "./failures.ts";
import type { KvMoves } from "./kv-moves.ts";
import type { RolloutParts } from "./parts.ts";
import { lacksReports, takeReports } from "./reports.ts";
import { problemOf } from "./token-check.ts";
import type { Worker, WorkerEvent } from "./worker.ts";

/** A strict response begins anew so often at most: with more updates than that in its time it would never end. */
const STRICT_RESTARTS_MAX = 16;

/** Status of a request for which an engine sent an invalid answer. */
const BAD_GATEWAY = 502;

interface LifeParts {
  readonly kv: KvMoves;
  readonly failures: Failures;
  /** The model's: a token at or beyond it ends the request. */
  readonly vocabularySize: number;
  /** The worker cannot be used any more. */
  readonly failed: (worker: Worker, message: string) => void;
}

export class RequestLife {
  readonly #parts: RolloutParts & LifeParts;

  constructor(shared: RolloutParts, own: LifeParts) {
    this.#parts = { ...shared, ...own };
  }

  /** The request, if it runs on the worker. */
  running(id: RequestId, workerId: WorkerId): Request | null {
    const request = this.#parts.buffer.request(id);
    return request?.status === "running" && request.workerId === workerId ? request : null;
  }

  /** Takes in output tokens. */
  tokens(worker: Worker, event: Extract<WorkerEvent, { kind: "tokens" }>): void {
    const request = this.running(event.requestId, worker.workerId);
    if (request === null) {
      this.#parts.meter.count("late_tokens", event.tokens.length);
      return;
    }
    const problem = problemOf(event, request.response, this.#parts.vocabularySize);
    if (problem !== null) {
      this.#refuse(request, `${worker.name} gave ${problem}`);
      return;
    }
    const { response } = request;
    const from = response.length;
    const result = response.append(event.offset, event.tokens, event.logprobs, event.top);
    if (result.kind === "gap") {
      this.#parts.meter.count("lost_tokens", result.missing);
      this.#parts.failed(worker, `lost ${result.missing} tokens of request ${event.requestId}`);
      return;
    }
    this.#parts.meter.tokens(worker.workerId, result.fresh);
    response.firstTokenMs ??= this.#parts.meter.turnMs;
    this.#parts.ledger.generated(worker.workerId, result.fresh);
    this.#parts.kv.executor.reached(request, contextTokens(request));
    if (result.repeated > 0) this.#parts.meter.count("duplicated_tokens", result.repeated);
    this.#parts.failures.progressed(request);
    if (this.#parts.context.progressed(request)) this.#parts.scheduler.refresh(request.group);
    this.#parts.registry.generated(request);
    if (result.fresh === 0) return;
    const chunk = response.lastChunk;
    response.lastTokenMs = this.#parts.meter.turnMs;
    if (chunk?.offset === from) {
      if (chunk.run) chunk.run.firstTokenMs = this.#parts.meter.turnMs;
      this.#parts.chunks.continued(request, this.#parts.clock.nowMs());
    }
    this.#parts.listener.tokens(request, from);
  }

  /** A chunk is over: the response goes on, or has ended. */
  chunkDone(worker: Worker, event: Extract<WorkerEvent, { kind: "chunk_done" }>): void {
    const { workerId } = worker;
    const request = this.running(event.requestId, workerId);
    if (request === null) return;
    if (event.finish === null && request.response.length === request.response.tokensMax) {
      this.#parts.failed(worker, `left request ${event.requestId} open, which has all its tokens`);
      return;
    }
    if (request.response.chunks.length === 1) {
      request.response.promptTokensCached = event.promptTokensCached ?? null;
    }
    const problem = takeReports(request, event);
    if (problem !== null) {
      this.#parts.failed(worker, `the experts of request ${event.requestId} ${problem}`);
      return;
    }
    const run = request.response.lastChunk?.run;
    if (run) run.drafts = event.drafts ?? null;
    if (this.#parts.meter.drift.compares(request.spec)) this.#compareDraws(request, worker);
    request.response.closeChunk(this.#parts.meter.turnMs, event.finish);
    if (event.finish !== null) {
      request.response.refusal = event.refusal ?? null;
      const keeps = request.spec.keepsKv === true && worker.keepsKv === true;
      if (keeps && event.finish !== "abort") this.#parts.kv.retain(request);
      else this.#parts.kv.executor.release(request);
      this.finish(request, event.finish);
      return;
    }
    this.#parts.chunks.ended(request, this.#parts.clock.nowMs());
    this.#parts.kv.executor.parked(request);
    this.#parts.buffer.move(request, "waiting");
  }

  /** The chunk's tokens say more on whether drafts change what its engine draws. */
  #compareDraws(request: Request, worker: Worker): void {
    const { meter, registry, listener } = this.#parts;
    const hasDrafts = registry.source(request) !== null && meter.hasDrafted(worker);
    const reason = meter.drift.ended(request, hasDrafts, meter.turnMs);
    if (reason === null) return;
    if (!meter.drift.mayDraft(worker.workerId)) meter.count("draft_alarms");
    listener.draftsOff?.(worker, reason);
  }

  /** The response is complete, or given up; what the request held on a worker has been given back already. */
  finish(request: Request, reason: ResponseEnd): void {
    const { group, response } = request;
    response.finish = reason;
    response.finishedMs = this.#parts.clock.nowMs();
    response.closeChunk(response.finishedMs, reason);
    this.#parts.buffer.move(request, "finished");
    if (isCut(reason)) this.#parts.context.aborted(request);
    else this.#parts.context.finished(request);
    this.#parts.failures.ended(request, !isCut(reason));
    this.#parts.scheduler.refresh(group);
    this.#parts.kv.finished(request);
    this.#parts.meter.requestFinished(request);
    this.#parts.listener.finished(request);
    if (isComplete(group)) this.retire(group);
  }

  /** All requests of a closed group have finished. */
  retire(group: Group): void {
    // A listener that ended the others when one had finished has retired it.
    if (this.#parts.buffer.group(group.groupId) !== group) return;
    for (const { workerId, update } of this.#parts.registry.retired(group)) {
      this.#parts.outbox.post(workerId, update);
    }
    for (const request of group.requests)
      if (request.spec.keepsKv === true) this.#parts.kv.letGo(request);
    this.#parts.meter.groupFinished(group);
    this.#parts.listener.groupFinished(group);
    this.#parts.scheduler.forget(group);
    this.#parts.context.forget(group);
    this.#parts.buffer.remove(group);
  }

  /** A worker's tokens of the request cannot be used; the worker itself goes on. */
  #refuse(request: Request, message: string): void {
    request.response.refusal = { status: BAD_GATEWAY, message };
    this.cut(request, "abort");
  }

  /** Ends an unfinished response as it stands. */
  cut(request: Request, reason: "abort" | "stop" | "deadline"): void {
    if (reason !== "stop" || !this.#parts.kv.park(request)) this.#parts.kv.release(request);
    this.finish(request, reason);
  }

  /** The chunk of each running request that may be divided ends with the tokens that it has. */
  parkAll(): void {
    for (const request of this.#parts.buffer.requests) this.park(request);
  }

  park({ status, workerId, spec: { divisible, requestId } }: Request): void {
    if (status !== "running" || workerId === null || !divisible) return;
    this.#parts.outbox.post(workerId, { kind: "park", requestId });
  }

  /** The request has lost what it had on a worker; if it ran, it waits again. */
  unplace(request: Request): void {
    const hasRun = request.status === "moving" || request.status === "running";
    if (hasRun) request.response.closeChunk(this.#parts.clock.nowMs(), "lost");
    this.#parts.kv.executor.lost(request);
    if (!hasRun) {
      this.#parts.scheduler.unparked(request);
      return;
    }
    const end = unreportedEnd(request);
    if (end !== null && !lacksReports(request)) {
      this.finish(request, end);
      return;
    }
    const canContinue = end === null && request.spec.divisible;
    const isRestarted = !canContinue && request.response.length > 0;
    if (isRestarted) {
      this.#parts.meter.restarted(request.response.length);
      request.response.restart();
      this.#parts.registry.restarted(request);
    }
    this.#parts.buffer.move(request, "waiting");
    if (isRestarted) this.#parts.listener.restarted(request);
  }

  /** A strict request that waits has tokens of weights that are no longer current, and nothing on a worker. */
  beginAnew(request: Request): void {
    const { response } = request;
    if (response.chunks.length === 0) return;
    if (response.restarts >= STRICT_RESTARTS_MAX) {
      const message = `the weights changed ${response.restarts + 1} times before it was finished, and all its tokens must be of the same`;
      response.refusal = { status: 409, message };
      this.cut(request, "abort");
      return;
    }
    // The request's place in the order depends on its length.
    this.#parts.scheduler.remove(request);
    this.#parts.meter.restarted(response.length);
    response.restart();
    this.#parts.registry.restarted(request);
    this.#parts.wait(request);
    this.#parts.listener.restarted(request);
  }
}

/** The end of a response whose worker, or sidecar, was lost after its last token and before the report; null: it goes on. */
export function unreportedEnd({ spec, response }: Request): FinishReason | null {
  const { stopTokenIds, tokensMax } = spec.sampling;
  const last = response.length === 0 ? null : response.tokens(response.length - 1)[0];
  if (last != null && stopTokenIds.includes(last)) return "stop";
  return response.length === tokensMax ? "length" : null;
}
