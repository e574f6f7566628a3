// The worker port on a stock vLLM or SGLang server: one streaming request for each chunk. It owns the streams and sees that
// whatever happens to one, no token is lost or comes twice: an attempt goes on where the one before ended.
// It never holds KV: what the server's prefix cache has of a continuation is found there by its tokens.

import { assert, present, unreachable } from "../../core/base/assert.ts";
import { errorText } from "../../core/base/errors.ts";
import type { RequestId, WeightEpoch, WorkerId } from "../../core/base/ids.ts";
import type { FinishReason, SamplingParams } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import {
  CANARY_PATH,
  type ControlAnswer,
  type ControlRequest,
  type ReportedVersion,
  type SamplingSupport,
  type Worker,
  type WorkerCapacity,
  type WorkerCommand,
  type WorkerEvent,
  type WorkerListener,
  type WorkerStats,
} from "../../core/rollout/worker.ts";
import { chunkBodyOf } from "./body.ts";
import { chunkRequest } from "./chunk-request.ts";
import { ChunkRun } from "./chunk-run.ts";
import { contained, pause, type TimerClock } from "./clock.ts";
import { canaryModel, controlAnswer, controlCall } from "./control.ts";
import { type AnswerForm, ENDPOINT_PATHS } from "./dialect.ts";
import type { EventUsage, StreamEvent } from "./event.ts";
import type { HttpCall, HttpClient } from "./http.ts";
import type { KvMoves } from "./kv-moves.ts";
import type { VllmLimits } from "./limits.ts";
import type { ServerMetrics } from "./metrics.ts";
import { Monitor, type PollFailure } from "./monitor.ts";
import { Outbox } from "./outbox.ts";
import { type Capabilities, canary } from "./probe.ts";
import { Ranks } from "./ranks.ts";
import { classify, retryDelayMs } from "./retry.ts";
import { ridOf } from "./sglang/body.ts";
import { abortCall, FLUSH_CALL, SglangControl } from "./sglang/control.ts";
import { npyOfRows } from "./sglang/experts.ts";
import { sglangSupport } from "./sglang/support.ts";
import { SseReader } from "./sse.ts";
import { errorMessage, readEvent } from "./stream-event.ts";
import { supportOf } from "./support.ts";
import { Tally } from "./tally.ts";
import { problemOf, watchOf } from "./watch.ts";
import { weightsCanary } from "./weights-canary.ts";
import { WholeReader, wholeAnswer, withoutExperts } from "./whole-answer.ts";

/** What an operator may want to know; none of it is an error of the rollout. */
export type VllmNotice =
  | { readonly kind: "retry"; readonly requestId: RequestId; readonly reason: string }
  /** The request can never run here; it ends as given up. */
  | { readonly kind: "refused"; readonly requestId: RequestId; readonly reason: string }
  | { readonly kind: "warning"; readonly message: string };

export interface VllmWorkerParts {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  readonly client: HttpClient;
  readonly clock: TimerClock;
  readonly limits: VllmLimits;
  readonly capabilities: Capabilities;
  readonly kvBytesPerToken: number;
  readonly cacheSalt: string;
  /** null: it has no connector that finds what another server has saved. */
  readonly moves: KvMoves | null;
  readonly notice: (notice: VllmNotice) => void;
  /** Hears why the server cannot be reached while requests still wait for it; null: it can be again. */
  readonly reach: (lost: string | null) => void;
}

/**
 * What may end in the step or two that a round trip takes: chunks have hundreds of tokens and steps make a few of
 * each, so that about one request in a hundred ends with a step, and several at once by chance.
 */
const SLOTS_PER_AHEAD = 8;
/** Whoever asks for control has a deadline of its own, `--weights-timeout-s` at most; this is the longest of those. */
const CALLER_MS_MAX = 86_400_000;
/** A request that this server never got to the end of, though others do: nobody knows whose fault it is. */
const BAD_GATEWAY = 502;

function reasonOf({ status, message }: Refusal): string {
  return status === 0 ? message : `HTTP ${status}: ${message}`;
}

type Run = Extract<WorkerCommand, { kind: "run" }>;

export class VllmWorker implements Worker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  /** In the server's prefix cache, if it has not been overwritten. */
  readonly keepsKv = true;
  readonly #parts: VllmWorkerParts;
  readonly #tally: Tally;
  #epoch: WeightEpoch;
  #listener: WorkerListener | null = null;
  readonly #runs = new Map<RequestId, ChunkRun>();
  /** Runs that wait until a stream may be opened, in order. */
  readonly #held = new Set<ChunkRun>();
  /** null: the server has one rank, or places requests itself. */
  readonly #ranks: Ranks | null;
  /** null: it is vLLM. */
  readonly #sglang: SglangControl | null;
  #openStreams = 0;
  #chunks = 0;
  /** Connections whose stream is over, until the server ends them. */
  readonly #lingering = new Map<() => void, number>();
  readonly #outbox: Outbox;
  readonly #monitor: Monitor;
  #state: "running" | "failed" | "closed" = "running";
  /** Why it failed, for a listener that comes later. */
  #failure: string | null = null;
  /** The server's weights are not those that it starts with. */
  #hasOtherWeights: boolean;
  #isFlushing = false;
  /** A stream broke or the server did not answer since it was last known to be the same process. */
  #isSuspect = false;
  /** What `reach` heard last. */
  #lost: string | null = null;
  #proof: Promise<boolean> | null = null;
  #version: ReportedVersion | null = null;

  constructor(given: VllmWorkerParts) {
    // A fault in what a timer does is this worker's, and nobody else's.
    const parts = { ...given, clock: contained(given.clock, (error) => this.#crashed(error)) };
    const { slots, kvTokens, kvBlockTokens, contextTokens, metrics } = parts.capabilities;
    this.#parts = parts;
    const { ranks } = parts.capabilities;
    this.#ranks = ranks === null ? null : new Ranks(ranks);
    this.workerId = parts.workerId;
    this.name = parts.client.url;
    const ahead = Math.ceil(slots / SLOTS_PER_AHEAD);
    const { kvBytesPerToken } = parts;
    this.capacity = { slots, ahead, kvTokens, kvBlockTokens, contextTokens, kvBytesPerToken };
    this.#epoch = parts.epoch;
    // A later epoch's weights were loaded since the server's start, as far as is known here.
    this.#hasOtherWeights = parts.epoch > 0;
    this.#tally = new Tally(metrics);
    this.#outbox = new Outbox({
      clock: parts.clock,
      coalesceMs: parts.limits.coalesceMs,
      send: (events) => this.#send(events),
    });
    const { sglang } = parts.capabilities;
    this.#sglang = sglang === null ? null : new SglangControl(parts.client, sglang);
    this.#monitor = new Monitor(
      { ...parts, watch: watchOf(sglang) },
      {
        watched: (nowMs) => this.#watched(nowMs),
        polled: (metrics) => this.#polled(metrics),
        versionRead: (name) => this.#versionRead(name),
        pollFailed: (failed) => this.#pollFailed(failed),
        unhealthy: (problem) => this.#fail(`it is silent and not healthy: ${problem}`),
      },
    );
  }

  /** What the server was found to be. */
  get capabilities(): Capabilities {
    return this.#parts.capabilities;
  }

  get weightVersion(): ReportedVersion | null {
    return this.#version;
  }

  get reportsExperts(): boolean {
    return this.#parts.capabilities.reportsExperts;
  }

  get isSglang(): boolean {
    return this.#sglang !== null;
  }

  listen(listener: WorkerListener): void {
    assert(this.#listener === null, "a worker has one listener");
    this.#listener = listener;
    const message = this.#failure;
    if (message === null) return;
    queueMicrotask(() => listener(this.#epoch, [{ kind: "failed", message }]));
  }

  supports(sampling: SamplingParams): SamplingSupport {
    const { capabilities } = this.#parts;
    return this.#sglang === null
      ? supportOf(sampling, capabilities)
      : sglangSupport(sampling, capabilities);
  }

  send(commands: readonly WorkerCommand[]): void {
    for (const command of commands) {
      if (this.#state !== "running") return;
      try {
        this.#obey(command);
      } catch (error) {
        this.#crashed(error);
      }
    }
  }

  async control(request: ControlRequest): Promise<ControlAnswer> {
    if (request.path === CANARY_PATH) return await this.#canary(request);
    return await this.#control(request, CALLER_MS_MAX);
  }

  async #control(request: ControlRequest, msMax: number): Promise<ControlAnswer> {
    const { client } = this.#parts;
    if (this.#sglang !== null) return await this.#sglang.answer(request, msMax);
    let call: HttpCall;
    try {
      call = controlCall(request);
    } catch (error) {
      return { status: 400, body: { error: `it cannot be sent on: ${errorText(error)}` } };
    }
    return controlAnswer(client.url, await client.answer(call, msMax));
  }

  async #canary({ body }: ControlRequest): Promise<ControlAnswer> {
    const { client, limits, capabilities: dialect, cacheSalt } = this.#parts;
    if (this.#sglang?.isAsleep === true) return { status: 200, body: { asleep: true } };
    const model = canaryModel(body);
    const name = crypto.randomUUID();
    const epoch = this.#epoch;
    const ask = { client, limits, dialect, cacheSalt, epoch, model };
    const { ranks } = dialect;
    if (ranks === null) return await weightsCanary({ ...ask, name, rank: null });
    // Each rank has weights of its own.
    const answers = await Promise.all(
      ranks.map((_, rank) => weightsCanary({ ...ask, name: `${name}-${rank}`, rank })),
    );
    return (
      answers.find(({ status }) => status !== 200) ?? present(answers[0], "a server has a rank")
    );
  }

  async close(): Promise<void> {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#letGo();
    this.#parts.client.close();
  }

  #obey(command: WorkerCommand): void {
    switch (command.kind) {
      case "run":
        this.#run(command);
        return;
      case "export":
        this.#endEarly(command.requestId);
        this.#outbox.say({ kind: "exported", requestId: command.requestId, kv: null });
        return;
      case "park":
        this.#forget(command.requestId);
        return;
      case "release":
        this.#forget(command.requestId);
        this.#parts.moves?.forget(command.requestId);
        this.#ranks?.forget(command.requestId);
        return;
      case "advance":
        this.#begin(command.epoch);
        if (this.#sglang !== null) this.#contain(this.#flush(command.epoch));
        return;
      // A stock server keeps no draft groups.
      case "register_group":
      case "delta":
      case "drop_group":
      // What there is of a finished turn the next one finds by its tokens.
      case "adopt":
        return;
      default:
        unreachable(command);
    }
  }

  #run({ request, output, chunkTokens, priority, draft, expertsFrom }: Run): void {
    this.#forget(request.requestId);
    this.#chunks += 1;
    const run = new ChunkRun({
      spec: request,
      output,
      chunkTokens,
      draft,
      expertsFrom: expertsFrom ?? null,
      isUrgent: priority === "high",
      chunk: this.#chunks,
    });
    this.#runs.set(request.requestId, run);
    this.#launch(run);
  }

  /** Work that nobody waits for. It fails with the worker, which is opened anew. */
  #contain(work: Promise<unknown>): void {
    work.catch((error: unknown) => this.#crashed(error));
  }

  #crashed(error: unknown): void {
    this.#fail(`a fault in its worker: ${errorText(error)}`);
  }

  /** The chunk is over with the tokens that have come; the server is left, and frees its KV. */
  #endEarly(requestId: RequestId): void {
    const run = this.#runs.get(requestId);
    if (run === undefined || !run.spec.divisible) return;
    const outcome = run.outcome(this.capacity.contextTokens);
    this.#finish(run, outcome.kind === "finished" ? outcome.reason : null);
  }

  /** Whatever there is of the request ends without a word. */
  #forget(requestId: RequestId): void {
    const run = this.#runs.get(requestId);
    if (run === undefined) return;
    this.#close(run);
    this.#runs.delete(requestId);
    this.#held.delete(run);
    this.#outbox.drop(run);
    this.#launchHeld();
  }

  /** Nothing of an earlier epoch is left. */
  #begin(epoch: WeightEpoch): void {
    this.#hasOtherWeights = true;
    this.#isFlushing = false;
    for (const run of this.#runs.values()) this.#close(run);
    this.#runs.clear();
    this.#held.clear();
    this.#outbox.clear();
    this.#epoch = epoch;
    this.#ranks?.clear();
    this.#parts.moves?.clear();
    this.#outbox.say({ kind: "advanced", epoch });
  }

  /**
   * Empties SGLang's cache before anything of the epoch runs. Requests that have just been left keep it from that for a
   * moment.
   */
  async #flush(epoch: WeightEpoch): Promise<void> {
    const { client, clock, limits } = this.#parts;
    this.#isFlushing = true;
    const endMs = clock.nowMs() + limits.checkMsMax;
    for (;;) {
      const answer = await client.answer(FLUSH_CALL, limits.checkMsMax);
      if (this.#state !== "running" || this.#epoch !== epoch) return;
      const problem = problemOf(answer);
      if (problem === null) break;
      if (clock.nowMs() >= endMs) {
        this.#fail(`it may hold KV of older weights: /flush_cache: ${problem}`);
        return;
      }
      await pause(clock, limits.retryMs);
    }
    this.#isFlushing = false;
    this.#launchHeld();
  }

  /**
   * A server that may have restarted may have its first weights again, and what ended it must not reach it a second
   * time before its end is counted: nothing runs there until it is known to be the same process.
   */
  get #mayLaunch(): boolean {
    if (this.#isFlushing || this.#isSuspect) return false;
    return this.#openStreams < this.#parts.limits.streamsMax;
  }

  #launchHeld(): void {
    // Those that no rank has room for are held again.
    for (const run of [...this.#held]) {
      if (!this.#mayLaunch) return;
      if (this.#held.delete(run)) this.#launch(run);
    }
  }

  #launch(run: ChunkRun): void {
    run.cancel = null;
    if (!this.#mayLaunch) {
      this.#held.add(run);
      return;
    }
    const { clock, limits, capabilities, cacheSalt } = this.#parts;
    run.begin();
    const rank = this.#ranks?.place(run) ?? null;
    if (this.#ranks !== null && rank === null) {
      this.#held.add(run);
      return;
    }
    run.heardMs = clock.nowMs();
    const ask = chunkRequest(run, {
      contextTokens: this.capacity.contextTokens,
      cacheSalt,
      epoch: this.#epoch,
      openStreams: this.#openStreams,
      streamIntervalMax: limits.streamIntervalMax,
    });
    if (ask === null) {
      const message = "the prompt fills the engine's context";
      if (run.offset === 0) this.#refuse(run, { status: 400, message });
      else this.#finish(run, "length");
      return;
    }
    run.rid = this.#sglang === null ? null : ridOf(ask);
    const body = chunkBodyOf(ask, capabilities);
    if (body === null) {
      this.#refuse(run, { status: 400, message: "its sampling fields cannot be written as JSON" });
      return;
    }
    this.#stream(run, body, { form: ask.form, rank });
  }

  /** What reading its stream throws ends this one request. */
  #stream(
    run: ChunkRun,
    body: string,
    { form, rank }: { form: AnswerForm; rank: number | null },
  ): void {
    const { client, limits, capabilities } = this.#parts;
    const hasReports = form === "whole" || run.expertsFrom !== null;
    const bytesMax = hasReports ? limits.reportBytesMax : limits.lineBytesMax;
    const whole = form === "whole" ? new WholeReader(bytesMax) : null;
    const reader = new SseReader(bytesMax);
    const path = ENDPOINT_PATHS[capabilities.endpoint];
    const guarded = (act: () => void) => {
      try {
        act();
      } catch (error) {
        this.#unreadable(run, error);
      }
    };
    this.#opened(run);
    const cancel = client.stream(
      { method: "POST", path, body, ...(rank === null ? {} : { rank }) },
      {
        data: (bytes) => {
          if (run.cancel !== cancel) return;
          try {
            const isTaken =
              whole?.push(bytes) ?? reader.push(bytes, (data) => this.#event(run, data));
            if (isTaken) return;
            const problem = `its answer, or a line of it, exceeds ${bytesMax} bytes`;
            if (hasReports) this.#refuse(run, { status: BAD_GATEWAY, message: problem });
            else this.#retry(run, problem);
          } catch (error) {
            this.#unreadable(run, error);
          }
        },
        ended: (message) =>
          guarded(() => {
            if (whole !== null && message === null && run.cancel === cancel) {
              this.#whole(run, whole.all());
            } else this.#ended(run, message, cancel);
          }),
        refused: (status, answer, retryAfterMs) =>
          guarded(() => this.#refusedBy(run, status, errorMessage(answer), retryAfterMs)),
      },
    );
    run.cancel = cancel;
  }

  #unreadable(run: ChunkRun, error: unknown): void {
    if (this.#runs.get(run.spec.requestId) !== run) return;
    this.#refuse(run, { status: BAD_GATEWAY, message: `its stream: ${errorText(error)}` });
  }

  #opened(run: ChunkRun): void {
    run.isOpen = true;
    this.#openStreams += 1;
    if (this.#openStreams === 1) this.#tally.busy(true, this.#parts.clock.nowMs());
  }

  /** Closes the run's stream, or ends its pause. */
  #close(run: ChunkRun): void {
    // SGLang looks for connections that are closed seconds later, and runs the request meanwhile.
    if (run.rid !== null && run.isOpen && run.cancel !== null) this.#abort(run.rid);
    run.cancel?.();
    run.cancel = null;
    this.#noLongerOpen(run);
  }

  #abort(rid: string): void {
    const { client, limits } = this.#parts;
    this.#contain(client.answer(abortCall(rid), limits.checkMsMax));
  }

  #noLongerOpen(run: ChunkRun): void {
    this.#ranks?.left(run);
    if (!run.isOpen) return;
    run.isOpen = false;
    this.#openStreams -= 1;
    if (this.#openStreams === 0) this.#tally.busy(false, this.#parts.clock.nowMs());
  }

  #whole(run: ChunkRun, data: Buffer): void {
    const { experts, rest } = withoutExperts(run, data);
    const { events, report } = wholeAnswer(rest, run.spec.sampling.topLogprobs);
    run.cancel = null;
    run.experts = experts;
    run.promptReport = report;
    for (const event of events) if (!this.#take(run, event)) return;
  }

  /** Returns whether the stream goes on. */
  #event(run: ChunkRun, data: Buffer): boolean {
    run.heardMs = this.#parts.clock.nowMs();
    const { experts, rest } = withoutExperts(run, data);
    run.experts = experts ?? run.experts;
    return this.#take(run, readEvent(rest, run.spec.sampling.topLogprobs));
  }

  #take(run: ChunkRun, event: StreamEvent): boolean {
    switch (event.kind) {
      case "piece": {
        // All was there already, and the server goes on: it did not see the stop.
        if (run.isFull && event.tokens.length > 0 && run.reason === null) {
          this.#settle(run);
          return false;
        }
        const before = run.made;
        const taken = run.take(event);
        if (taken === "broken") {
          this.#retry(run, "tokens of its stream are missing or out of order");
          return false;
        }
        this.#tally.made(run.made - before);
        if (run.made > before) this.#outbox.made(run);
        if (event.finishReason !== null && event.isWholeUsage === true && event.usage !== null) {
          this.#used(run, event.usage);
          if (run.experts !== null) run.experts = npyOfRows(run.experts, run.expertRows);
        }
        if (event.weightVersion !== null) this.#versionRead(event.weightVersion);
        return true;
      }
      case "usage":
        this.#used(run, event.usage);
        return true;
      case "done":
        this.#linger(run);
        this.#settle(run);
        return false;
      case "error":
        this.#refusedBy(run, event.status, event.message, null);
        return false;
      case "unreadable":
        this.#retry(run, "an event of its stream is not readable");
        return false;
      default:
        return unreachable(event);
    }
  }

  /** Of the last piece of an attempt, which holds all that is to be reported of it. */
  #used(run: ChunkRun, usage: EventUsage): void {
    this.#tally.prefilled(run, usage);
    run.report(usage);
    this.#parts.moves?.used(run, usage);
  }

  #ended(run: ChunkRun, message: string | null, cancel: () => void): void {
    if (this.#lingering.delete(cancel) || run.cancel !== cancel) return;
    run.cancel = null;
    const isWhole = run.reason !== null || run.isFull;
    if (message !== null || !isWhole) {
      this.#isSuspect = true;
      this.#contain(this.#monitor.pollAnew());
    }
    if (isWhole) this.#settle(run);
    else this.#retry(run, message ?? "its stream ended without a word");
  }

  /** The server has yet to end the connection, which can then be used again. */
  #linger(run: ChunkRun): void {
    if (run.cancel === null) return;
    this.#lingering.set(run.cancel, this.#parts.clock.nowMs());
    run.cancel = null;
  }

  /** The attempt has come to its end. */
  #settle(run: ChunkRun): void {
    const outcome = run.outcome(this.capacity.contextTokens);
    const lacking = run.lacking(outcome);
    if (lacking !== null) {
      this.#refuse(run, { status: BAD_GATEWAY, message: `${this.name} reports no ${lacking}` });
      return;
    }
    if (outcome.kind === "short") {
      const reason = `it ended early (${run.reason ?? "[DONE] without a reason"})`;
      // What has come is a shorter chunk; without any, the rollout would only send it here again.
      if (run.made === 0 || !run.spec.divisible) this.#retry(run, reason);
      else this.#finish(run, null);
      return;
    }
    this.#finish(run, outcome.kind === "finished" ? outcome.reason : null);
  }

  #finish(run: ChunkRun, finish: FinishReason | null, refusal?: Refusal): void {
    const { requestId } = run.spec;
    const tokens = finish === "abort" ? null : run.deliver(true);
    this.#forget(requestId);
    if (finish !== null) {
      this.#parts.moves?.forget(requestId);
      this.#ranks?.forget(requestId);
    }
    if (tokens !== null) this.#outbox.say(tokens);
    const why = refusal === undefined ? {} : { refusal };
    const cached = run.promptTokensCached;
    const found = cached === null ? {} : { promptTokensCached: cached };
    const reports = refusal === undefined ? run.reports() : {};
    this.#outbox.say({ kind: "chunk_done", requestId, finish, ...why, ...found, ...reports });
  }

  /** `status` 0: not said. */
  #refusedBy(run: ChunkRun, status: number, message: string, retryAfterMs: number | null): void {
    const refusal = { status, message };
    const kind = classify(status);
    if (kind === "passing") this.#retry(run, reasonOf(refusal), retryAfterMs);
    else if (kind === "request") this.#refuse(run, refusal);
    else {
      this.#close(run);
      run.hasSecondChance = false;
      this.#contain(this.#judge(run, refusal));
    }
  }

  #refuse(run: ChunkRun, refusal: Refusal): void {
    const { requestId } = run.spec;
    this.#parts.notice({ kind: "refused", requestId, reason: reasonOf(refusal) });
    this.#finish(run, "abort", refusal);
  }

  #retry(run: ChunkRun, reason: string, retryAfterMs: number | null = null): void {
    const { clock, limits } = this.#parts;
    this.#close(run);
    run.failedAttempts = run.hasProgressed ? 0 : run.failedAttempts + 1;
    run.attempt += 1;
    if (run.failedAttempts >= limits.failedAttemptsMax) {
      this.#contain(this.#judge(run, { status: 0, message: reason }));
      return;
    }
    this.#parts.notice({ kind: "retry", requestId: run.spec.requestId, reason });
    // Whether the server is still there, before the next look is due.
    void this.#monitor.poll();
    const delayMs = retryDelayMs(run, limits, retryAfterMs);
    run.cancel = clock.after(delayMs, () => this.#launch(run));
    this.#launchHeld();
  }

  /**
   * Either this server cannot run the request, or it runs nothing any more, or it could not for a while: a request is
   * refused only if it has brought nothing twice, while the server made tokens for another.
   */
  async #judge(run: ChunkRun, refusal: Refusal): Promise<void> {
    const serves = await this.#serves();
    if (this.#state !== "running" || this.#runs.get(run.spec.requestId) !== run) return;
    if (!serves) {
      this.#fail(reasonOf(refusal));
    } else if (run.hasSecondChance) {
      run.hasSecondChance = false;
      run.failedAttempts = 0;
      this.#launch(run);
    } else this.#refuse(run, { ...refusal, status: BAD_GATEWAY });
  }

  #serves(): Promise<boolean> {
    const { client, limits, capabilities, cacheSalt } = this.#parts;
    const options = { dialect: capabilities, cacheSalt, msMax: limits.checkMsMax };
    this.#proof ??= canary(client, options).then((result) => {
      this.#proof = null;
      return result.kind === "ok";
    });
    return this.#proof;
  }

  #fail(message: string): void {
    if (this.#state !== "running") return;
    const events = this.#outbox.take();
    this.#failure = `${this.name}: ${message}`;
    events.push({ kind: "failed", message: this.#failure });
    this.#letGo();
    this.#state = "failed";
    this.#listener?.(this.#epoch, events);
  }

  #letGo(): void {
    for (const run of this.#runs.values()) this.#close(run);
    for (const cancel of this.#lingering.keys()) cancel();
    this.#runs.clear();
    this.#held.clear();
    this.#lingering.clear();
    this.#outbox.clear();
    this.#monitor.stop();
  }

  #send(events: WorkerEvent[]): void {
    if (events.some((event) => event.kind === "chunk_done")) {
      events.push({ kind: "stats", stats: this.stats() });
    }
    this.#listener?.(this.#epoch, events);
  }

  /** As of the last look at the server's metrics. */
  stats(): WorkerStats {
    return this.#tally.stats(this.capacity.kvTokens, this.#parts.moves);
  }

  #watched(nowMs: number): boolean {
    const { stallMs, silenceMsMax } = this.#parts.limits;
    for (const [cancel, sinceMs] of this.#lingering) {
      if (nowMs - sinceMs < stallMs) continue;
      this.#lingering.delete(cancel);
      cancel();
    }
    let isSilent = false;
    for (const run of this.#runs.values()) {
      const silentMs = nowMs - run.heardMs;
      if (!run.isOpen || silentMs < stallMs) continue;
      if (run.reason !== null || run.isFull) this.#settle(run);
      // A queued, preempted or paused request says nothing: silence alone is no failure for a long time.
      else if (silentMs < silenceMsMax) isSilent = true;
      else this.#retry(run, `its stream was silent for ${silenceMsMax} ms`);
    }
    return isSilent;
  }

  #polled(metrics: ServerMetrics): void {
    if (!this.#tally.metrics(metrics)) {
      const weights = this.#hasOtherWeights ? ", with the weights it was first given" : "";
      this.#fail(`it has restarted${weights}`);
      return;
    }
    this.#isSuspect = false;
    this.#reached(null);
    this.#outbox.say({ kind: "stats", stats: this.stats() });
    this.#launchHeld();
  }

  #versionRead(name: string): void {
    this.#version = { name, readMs: this.#parts.clock.nowMs() };
  }

  #pollFailed({ failures, problem, refusedMs }: PollFailure): void {
    const { failedAttemptsMax, goneMsMax } = this.#parts.limits;
    this.#isSuspect = true;
    const isGone = refusedMs !== null && refusedMs >= goneMsMax;
    if (isGone || (this.#held.size > 0 && failures >= failedAttemptsMax)) this.#fail(problem);
    // A single failure of another kind may be a busy server's.
    else if (refusedMs !== null || failures > 1) this.#reached(problem);
  }

  #reached(lost: string | null): void {
    if (this.#state !== "running" || this.#lost === lost) return;
    this.#lost = lost;
    this.#parts.reach(lost);
  }
}
