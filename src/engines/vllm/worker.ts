// The worker port on a stock vLLM or SGLang server: one streaming request for each chunk. It owns the streams and ensures
// that no token is lost or repeated, whatever happens to a stream: each attempt continues where the last one ended.
// It never holds KV: the server finds that of a continuation in its prefix cache, by the tokens.

import { assert, unreachable } from "../../core/base/assert.ts";
import { errorText } from "../../core/base/errors.ts";
import type { RequestId, WeightEpoch, WorkerId } from "../../core/base/ids.ts";
import type { FinishReason, SamplingParams } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import type { ControlAnswer, EngineOperation } from "../../core/rollout/operation.ts";
import type {
  EngineWorker,
  OutputReader,
  ReportedVersion,
  SamplingSupport,
  WorkerCapacity,
  WorkerCommand,
  WorkerEvent,
  WorkerListener,
  WorkerStats,
} from "../../core/rollout/worker.ts";
import type { EngineNotice } from "../kind.ts";
import { chunkRequest, classify, retryDelayMs } from "./chunk-request.ts";
import { ChunkRun } from "./chunk-run.ts";
import { contained } from "./clock.ts";
import type { Capabilities, EngineDialect, FoundEngine, ServerAccess } from "./dialect.ts";
import { EventOutbox } from "./event-outbox.ts";
import type { ServerMetrics } from "./metrics.ts";
import { Monitor } from "./monitor.ts";
import type { EventUsage } from "./stream-event.ts";
import { type StreamEvent, Streams } from "./streams.ts";
import { ServerTally } from "./tally.ts";
import { proveServing, refusalText, type TrialServer, weightsCanary } from "./trial.ts";

export interface VllmWorkerParts extends ServerAccess {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  readonly dialect: EngineDialect;
  readonly capabilities: Capabilities;
  /** Class of the server's connector that finds KV of other servers; null: none. */
  readonly connector: string | null;
  readonly notice: (notice: EngineNotice) => void;
  /** Called with the reason when the server becomes unreachable while requests wait for it; with null when it is back. */
  readonly reach: (lost: string | null) => void;
}

/**
 * Slots for each request sent ahead, which replaces one that ends during a round trip of a step or two. Chunks have
 * hundreds of tokens and a step makes a few of each, so about 1 % of requests end with a step, sometimes several at once.
 */
const SLOTS_PER_AHEAD = 8;
/** Status of a request that failed here while others succeeded: the cause is unknown. */
const BAD_GATEWAY = 502;

type Run = Extract<WorkerCommand, { kind: "run" }>;

export class VllmWorker implements EngineWorker {
  readonly workerId: WorkerId;
  readonly name: string;
  readonly capacity: WorkerCapacity;
  /** KV stays in the server's prefix cache until it is overwritten. */
  readonly keepsKv = true;
  readonly reportsExperts: boolean;
  readonly takesAborts: boolean;
  readonly found: FoundEngine;
  readonly #parts: VllmWorkerParts;
  readonly #tally: ServerTally;
  #epoch: WeightEpoch;
  #listener: WorkerListener | null = null;
  #outputOf: OutputReader = () => null;
  readonly #runs = new Map<RequestId, ChunkRun>();
  /** Runs that wait for `#mayLaunch`, in order. */
  readonly #held = new Set<ChunkRun>();
  readonly #control: ReturnType<EngineDialect["control"]>;
  readonly #streams: Streams;
  #chunks = 0;
  readonly #outbox: EventOutbox;
  readonly #monitor: Monitor;
  #state: "running" | "failed" | "closed" = "running";
  /** Reason of the worker's failure, for a listener that is added later. */
  #failure: string | null = null;
  /** The server has had a weight update since its start. */
  #hasOtherWeights: boolean;
  #isFlushing = false;
  /** The server may have restarted: a stream broke, or a poll failed, since its process was last identified. */
  #isSuspect = false;
  /** When the server's process was last known to be the one that has the current weights. */
  #seenMs = Number.NEGATIVE_INFINITY;
  /** Time of the last new token of any request. */
  #madeMs = Number.NEGATIVE_INFINITY;
  /** The last argument of `reach`. */
  #lost: string | null = null;
  #proof: Promise<boolean> | null = null;
  #version: ReportedVersion | null = null;

  constructor(options: VllmWorkerParts) {
    // An error in a timer fails this worker and no other.
    const parts = { ...options, clock: contained(options.clock, (error) => this.#crashed(error)) };
    const { dialect, capabilities } = parts;
    const { slots, kvTokens, kvBlockTokens, contextTokens, metrics } = capabilities;
    this.#parts = parts;
    this.found = parts;
    this.reportsExperts = capabilities.reportsExperts;
    this.takesAborts = dialect.takesAborts;
    this.workerId = parts.workerId;
    this.name = parts.client.url;
    const ahead = Math.ceil(slots / SLOTS_PER_AHEAD);
    // KV is not exported: servers that share it find it by themselves.
    const kv = { kvTokens, kvBlockTokens, kvBytesPerToken: 0, sharesPrompts: true };
    this.capacity = { slots, ahead, contextTokens, ...kv, sharesKv: parts.connector !== null };
    this.#epoch = parts.epoch;
    // A later epoch's weights were loaded since the server's start, as far as is known here.
    this.#hasOtherWeights = parts.epoch > 0;
    this.#tally = new ServerTally(metrics, kvTokens, parts.connector);
    this.#outbox = new EventOutbox(parts.clock, (events) => this.#send(events));
    this.#control = dialect.control(parts.client, capabilities);
    this.#streams = new Streams(this.#server, this.#tally, (run, event) => this.#take(run, event));
    this.#monitor = new Monitor(parts, {
      watched: (nowMs) => this.#watched(nowMs),
      polled: (metrics) => this.#polled(metrics),
      versionRead: (name) => this.#versionRead(name),
      pollFailed: (...failure) => this.#pollFailed(...failure),
      unhealthy: (problem) => this.#fail(`it is silent and not healthy: ${problem}`),
    });
  }

  get weightVersion(): ReportedVersion | null {
    return this.#version;
  }

  listen(listener: WorkerListener, outputOf: OutputReader): void {
    assert(this.#listener === null, "a worker has one listener");
    this.#listener = listener;
    this.#outputOf = outputOf;
    const message = this.#failure;
    if (message === null) return;
    queueMicrotask(() => listener(this.#epoch, [{ kind: "failed", message }]));
  }

  supports(sampling: SamplingParams): SamplingSupport {
    const { dialect, capabilities } = this.#parts;
    return dialect.supports(sampling, capabilities);
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

  async perform(operation: EngineOperation): Promise<ControlAnswer> {
    if (operation.kind !== "canary") return await this.#control(operation);
    const asleep = await this.#control({ kind: "ask", about: "is_asleep", settings: {} });
    // Only development mode reports it; a server without it has no sleep either.
    if (asleep.status === 200 && Object(asleep.body).is_sleeping === true) {
      return { status: 200, body: { asleep: true } };
    }
    const { adapter } = operation;
    const { ranks } = this.#parts.capabilities;
    return await weightsCanary(this.#server, { epoch: this.#epoch, adapter, ranks });
  }

  get #server(): TrialServer {
    return { ...this.#parts, form: this.#parts.capabilities };
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
        this.#endEarly(command.requestId);
        return;
      case "release":
        this.#forget(command.requestId);
        this.#tally.forget(command.requestId);
        return;
      case "advance":
        this.#begin(command.epoch);
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

  #run(command: Run): void {
    const { requestId } = command.request;
    this.#forget(requestId);
    this.#chunks += 1;
    const run = new ChunkRun(command, this.#chunks);
    this.#runs.set(requestId, run);
    this.#launch(run);
  }

  /** Starts background work. Its failure fails the worker, which is opened again. */
  #contain(work: Promise<unknown>): void {
    work.catch((error: unknown) => this.#crashed(error));
  }

  #crashed(error: unknown): void {
    this.#fail(`a fault in its worker: ${errorText(error)}`);
  }

  /** Ends the chunk with the tokens so far, and aborts its request, so that the server frees the KV. */
  #endEarly(requestId: RequestId): void {
    const run = this.#runs.get(requestId);
    if (run === undefined || !run.spec.divisible) return;
    const outcome = run.outcome(this.capacity.contextTokens);
    this.#finish(run, outcome.kind === "finished" ? outcome.reason : null);
  }

  /** Drops the request and its run without an event. */
  #forget(requestId: RequestId): void {
    const run = this.#runs.get(requestId);
    if (run === undefined) return;
    this.#streams.close(run);
    this.#runs.delete(requestId);
    this.#held.delete(run);
    this.#outbox.drop(run);
  }

  /** Begins an epoch, and drops all chunks and KV of the earlier one. */
  #begin(epoch: WeightEpoch): void {
    this.#hasOtherWeights = true;
    this.#isFlushing = false;
    this.#dropRuns();
    this.#epoch = epoch;
    this.#tally.clear();
    this.#outbox.say({ kind: "advanced", epoch });
    this.#contain(this.#emptyCache(epoch));
  }

  /** Empties the cache before the first chunk of the epoch runs. */
  async #emptyCache(epoch: WeightEpoch): Promise<void> {
    const { emptyCache } = this.#parts.dialect;
    if (emptyCache === null) return;
    this.#isFlushing = true;
    const isWanted = () => this.#state === "running" && this.#epoch === epoch;
    const problem = await emptyCache(this.#parts, isWanted);
    if (!isWanted()) return;
    if (problem !== null) {
      this.#fail(`it may hold KV of older weights: ${problem}`);
      return;
    }
    this.#isFlushing = false;
    this.#launchHeld();
  }

  /**
   * Whether requests may be sent. A server that may have restarted may have its first weights again; and the request that
   * crashed it must not be sent again before the crash is counted. So nothing runs until its process is identified.
   */
  get #mayLaunch(): boolean {
    return !this.#isFlushing && !this.#isSuspect;
  }

  /**
   * A server on which nothing runs breaks no stream when it restarts. If it was last seen longer ago than a restart may
   * take, and would have its first weights again, nothing is sent until its process is known to be the same.
   */
  #identify(): void {
    const { clock, limits } = this.#parts;
    const isSeen = this.#streams.count > 0 || clock.nowMs() - this.#seenMs <= limits.restartMsMin;
    if (!this.#hasOtherWeights || !this.#mayLaunch || isSeen) return;
    this.#isSuspect = true;
    this.#contain(this.#monitor.pollAnew());
  }

  #launchHeld(): void {
    for (const run of this.#held) {
      if (!this.#mayLaunch) return;
      this.#held.delete(run);
      this.#launch(run);
    }
  }

  #launch(run: ChunkRun): void {
    run.cancel = null;
    this.#identify();
    if (!this.#mayLaunch) {
      this.#held.add(run);
      return;
    }
    const { limits, cacheSalt } = this.#parts;
    // Of the last attempt's tokens, the response has those that were sent; the next one reads them there.
    if (run.attempt > 0) this.#outbox.flush();
    const output = this.#outputOf(run.spec.requestId);
    if (output === null) this.#forget(run.spec.requestId);
    if (output === null || this.#runs.get(run.spec.requestId) !== run) return;
    run.begin();
    const chunk = chunkRequest(run, output, {
      contextTokens: this.capacity.contextTokens,
      cacheSalt,
      epoch: this.#epoch,
      openStreams: this.#streams.count,
      streamIntervalMax: limits.streamIntervalMax,
    });
    if (chunk === null) {
      const message = "the prompt fills the engine's context";
      if (run.offset === 0) this.#refuse(run, { status: 400, message });
      else this.#finish(run, "length");
      return;
    }
    try {
      this.#streams.open(run, chunk);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.#refuse(run, { status: 400, message: "its sampling fields cannot be written as JSON" });
    }
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
        if (!run.take(event)) {
          this.#retry(run, "tokens of its stream are missing or out of order");
          return false;
        }
        this.#tally.generated(run.made - before);
        if (run.made > before) {
          this.#madeMs = run.heardMs;
          this.#outbox.changed(run);
        }
        if (event.finishReason !== null && event.isWholeUsage === true && event.usage !== null) {
          this.#used(run, event.usage);
          if (run.experts !== null) {
            run.experts = this.#parts.dialect.experts(run.experts, run.expertRows);
          }
        }
        if (event.weightVersion !== null) this.#versionRead(event.weightVersion);
        return true;
      }
      case "usage":
        this.#used(run, event.usage);
        return true;
      case "done":
        this.#streams.linger(run);
        this.#settle(run);
        return false;
      case "error":
        this.#refusedBy(run, event, event.retryAfterMs);
        return false;
      case "ended":
        this.#ended(run, event.message);
        return false;
      case "broken":
        if (!event.isFinal) this.#retry(run, event.message);
        else if (this.#runs.get(run.spec.requestId) === run) {
          this.#refuse(run, { status: BAD_GATEWAY, message: event.message });
        }
        return false;
      case "unreadable":
        this.#retry(run, "an event of its stream is not readable");
        return false;
      default:
        return unreachable(event);
    }
  }

  /** Counts the usage of an attempt, by its last event, which has the totals. */
  #used(run: ChunkRun, usage: EventUsage): void {
    this.#tally.used(run, usage);
    run.report(usage);
  }

  #ended(run: ChunkRun, message: string | null): void {
    const isWhole = run.reason !== null || run.isFull;
    if (message !== null || !isWhole) {
      this.#isSuspect = true;
      this.#contain(this.#monitor.pollAnew());
    }
    if (isWhole) this.#settle(run);
    else this.#retry(run, message ?? "its stream ended without a word");
  }

  /** Handles the regular end of an attempt. */
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
    if (finish !== null) this.#tally.forget(requestId);
    if (tokens !== null) this.#outbox.say(tokens);
    const why = refusal === undefined ? {} : { refusal };
    const cached = run.promptTokensCached;
    const hit = cached === null ? {} : { promptTokensCached: cached };
    const reports = refusal === undefined ? run.reports() : {};
    this.#outbox.say({ kind: "chunk_done", requestId, finish, ...why, ...hit, ...reports });
  }

  /** Handles a refusal by the server. `retryAfterMs` null: not given. */
  #refusedBy(
    run: ChunkRun,
    { status, message }: Refusal,
    retryAfterMs: number | null = null,
  ): void {
    const refusal = { status, message };
    const kind = classify(refusal);
    if (kind === "full") {
      const { clock, limits } = this.#parts;
      const nowMs = clock.nowMs();
      run.fullSinceMs ??= nowMs;
      // It is waited for as in its queue, and as long: nothing is wrong with it, or with the request.
      const isWaitedFor = nowMs - run.fullSinceMs < limits.silenceMsMax;
      const attemptsMax = limits.failedAttemptsMax - 2;
      if (isWaitedFor) run.failedAttempts = Math.min(run.failedAttempts, attemptsMax);
    }
    if (kind === "request") this.#refuse(run, refusal);
    else if (kind !== "worker") this.#retry(run, refusalText(refusal), retryAfterMs);
    else {
      this.#streams.close(run);
      run.hasSecondChance = false;
      this.#contain(this.#judge(run, refusal));
    }
  }

  /** Gives the request up: it can never run here. */
  #refuse(run: ChunkRun, refusal: Refusal): void {
    this.#finish(run, "abort", refusal);
  }

  #retry(run: ChunkRun, reason: string, retryAfterMs: number | null = null): void {
    const { clock, limits } = this.#parts;
    this.#streams.close(run);
    run.failedAttempts = run.hasProgressed ? 0 : run.failedAttempts + 1;
    if (run.hasProgressed) run.fullSinceMs = null;
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
  }

  /**
   * Decides what failed: the request, the server, or the server for a while. A request is refused only if two series of
   * attempts brought no token while the server generated for another request.
   */
  async #judge(run: ChunkRun, refusal: Refusal): Promise<void> {
    const serves = await this.#serves();
    if (this.#state !== "running" || this.#runs.get(run.spec.requestId) !== run) return;
    if (!serves) {
      this.#fail(refusalText(refusal));
    } else if (run.hasSecondChance) {
      run.hasSecondChance = false;
      run.failedAttempts = 0;
      this.#launch(run);
    } else this.#refuse(run, { ...refusal, status: BAD_GATEWAY });
  }

  #serves(): Promise<boolean> {
    const { limits } = this.#parts;
    this.#proof ??= proveServing(this.#server, { msMax: limits.checkMsMax }).then((tried) => {
      this.#proof = null;
      return tried.kind === "made" || (tried.kind === "refused" && classify(tried) === "full");
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
    this.#dropRuns();
    this.#streams.closeLingering(Number.POSITIVE_INFINITY);
    this.#monitor.stop();
  }

  #dropRuns(): void {
    for (const run of this.#runs.values()) this.#streams.close(run);
    this.#runs.clear();
    this.#held.clear();
    this.#outbox.clear();
  }

  #send(events: WorkerEvent[]): void {
    if (events.some((event) => event.kind === "chunk_done")) {
      events.push({ kind: "stats", stats: this.stats() });
    }
    this.#listener?.(this.#epoch, events);
  }

  /** Statistics, as of the last poll of the server's metrics. */
  stats(): WorkerStats {
    return this.#tally.stats();
  }

  #watched(nowMs: number): boolean {
    const { stallMs, silenceMsMax } = this.#parts.limits;
    this.#streams.closeLingering(nowMs - stallMs);
    let isSilent = false;
    for (const run of this.#runs.values()) {
      const silentMs = nowMs - run.heardMs;
      if (!run.isOpen || silentMs < stallMs) continue;
      if (run.reason !== null || run.isFull) this.#settle(run);
      // A queued, preempted or paused request says nothing: silence alone is no failure for a long time.
      else if (silentMs < silenceMsMax) isSilent = true;
      else this.#retry(run, `its stream was silent for ${silenceMsMax} ms`);
    }
    // One that makes tokens of others is alive, whatever its busy API process says of its health.
    return isSilent && nowMs - this.#madeMs >= stallMs;
  }

  #polled(metrics: ServerMetrics): void {
    if (!this.#tally.metrics(metrics)) {
      const weights = this.#hasOtherWeights ? ", with the weights it was first given" : "";
      this.#fail(`it has restarted${weights}`);
      return;
    }
    this.#isSuspect = false;
    this.#seenMs = this.#parts.clock.nowMs();
    this.#reached(null);
    this.#outbox.say({ kind: "stats", stats: this.stats() });
    this.#launchHeld();
  }

  #versionRead(name: string): void {
    this.#version = { name, readMs: this.#parts.clock.nowMs() };
  }

  #pollFailed(problem: string, failures: number, refusedMs: number | null): void {
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
