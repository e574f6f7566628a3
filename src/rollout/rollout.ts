// Runs one rollout iteration: carries out what the scheduler decides, on workers, and takes in what
// they make. It owns the lives of the requests; it never decides an order or a place.
//
// A request: waiting -> (moving, while its KV is on the way) -> running -> waiting ... -> finished.

import { assert, present } from "../base/assert.ts";
import type { Clock } from "../base/clock.ts";
import { AppError } from "../base/errors.ts";
import type { RequestId, WeightEpoch, WorkerId } from "../base/ids.ts";
import { ContextManager } from "../context/context.ts";
import { type DraftMode, DraftRegistry } from "../draft/registry.ts";
import { kvKey } from "../kv/key.ts";
import type { KvKey, KvPool } from "../kv/pool.ts";
import {
  contextTokens,
  type Group,
  type GroupSpec,
  type Request,
  RequestBuffer,
} from "../request/buffer.ts";
import type { PolicyName } from "../schedule/policy.ts";
import type { ScheduleCommand, Scheduler } from "../schedule/scheduler.ts";
import type { CoreExports } from "../wasm/load.ts";
import { Ledger } from "./ledger.ts";
import { Meter } from "./meter.ts";
import type { Progress, RunReport } from "./report.ts";
import { schedulerFor } from "./scheduler-for.ts";
import type { KvBlob, Worker, WorkerCommand, WorkerEvent } from "./worker.ts";

export interface RolloutOptions {
  readonly groups: readonly GroupSpec[];
  /** Fresh workers, all with the weights of `epoch`; the rollout listens to them but does not close them. */
  readonly workers: readonly Worker[];
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  /** Output tokens of one chunk, >= 1; the `group` policy does not divide. */
  readonly chunkTokens: number;
  readonly epoch: WeightEpoch;
  readonly deterministic: boolean;
  readonly pool: KvPool;
  readonly clock: Clock;
  /** Holds the scheduler's heaps. */
  readonly core: CoreExports;
  /** Called once for each group, as it finishes. What it throws ends the rollout. */
  readonly onGroup: (group: Group) => void;
}

/** KV that a worker is about to load stays in the pool for this long: Mooncake's default lease. */
const KV_LEASE_MS = 10_000;

/**
 * Siblings' tokens go out to each worker at most so often. A message costs the engine it goes to about as
 * much as a hundred tokens of drafting, and a draft loses little by siblings that lag a few dozen tokens.
 */
const DELTA_INTERVAL_MS = 50;

/** A chunk that was assigned while the request's KV was still leaving another worker. */
interface Pending {
  readonly workerId: WorkerId;
  readonly chunkTokens: number;
}

export class Rollout {
  readonly #options: RolloutOptions;
  readonly #buffer: RequestBuffer;
  readonly #context: ContextManager;
  readonly #scheduler: Scheduler;
  readonly #registry: DraftRegistry;
  readonly #ledger: Ledger;
  readonly #meter: Meter;
  readonly #exporting = new Map<RequestId, { from: WorkerId; tokens: number }>();
  readonly #pending = new Map<RequestId, Pending>();
  /** What the pool holds of each request: its newest blob, and how many tokens that covers. */
  readonly #pooled = new Map<RequestId, { key: KvKey; tokens: number }>();
  /** How many requests a blob belongs to: siblings with equal texts share one. */
  readonly #pooledBy = new Map<KvKey, number>();
  /** Commands of the current turn, by worker: each worker gets one message a turn. */
  readonly #outbox = new Map<WorkerId, WorkerCommand[]>();
  readonly #done = Promise.withResolvers<RunReport>();
  #deltasDueMs = Number.NEGATIVE_INFINITY;
  #ended = false;

  constructor(options: RolloutOptions) {
    assert(options.workers.length > 0, "a rollout has at least one worker");
    assert(options.groups.length > 0, "a rollout has at least one group");
    this.#options = options;
    this.#buffer = new RequestBuffer(options.groups);
    this.#context = new ContextManager(this.#buffer.groups);
    this.#scheduler = schedulerFor(options.policy, {
      buffer: this.#buffer,
      context: this.#context,
      chunkTokens: options.chunkTokens,
      core: options.core,
    });
    this.#registry = new DraftRegistry(options.draft);
    this.#ledger = new Ledger(options.workers);
    this.#meter = new Meter({
      clock: options.clock,
      buffer: this.#buffer,
      workers: options.workers,
    });
  }

  /** Resolves when every request has finished, or after `interrupt`. Call once. */
  run(): Promise<RunReport> {
    for (const worker of this.#options.workers) {
      worker.listen((epoch, events) => this.#receive(worker.workerId, epoch, events));
    }
    this.#meter.started();
    for (const request of this.#buffer.requests) this.#scheduler.enqueue(request);
    this.#guard(() => this.#pump());
    return this.#done.promise;
  }

  /** Ends the run as it stands: finished groups were handed out, the rest is dropped. */
  interrupt(): void {
    this.#end(true);
  }

  progress(): Progress {
    return this.#meter.progress();
  }

  #receive(workerId: WorkerId, epoch: WeightEpoch, events: readonly WorkerEvent[]): void {
    // A late message: of weights that are no longer current, of a removed worker, or after the end.
    if (this.#ended || epoch !== this.#options.epoch) return;
    if (this.#ledger.worker(workerId) === null) return;
    this.#guard(() => {
      for (const event of events) this.#take(workerId, event);
      this.#pump();
    });
  }

  #take(workerId: WorkerId, event: WorkerEvent): void {
    switch (event.kind) {
      case "tokens":
        this.#tokens(workerId, event);
        return;
      case "chunk_done":
        this.#chunkDone(workerId, event);
        return;
      case "exported":
        this.#exported(this.#buffer.request(event.requestId), event.kv);
        return;
      case "evicted":
        this.#evicted(workerId, this.#buffer.request(event.requestId));
        return;
      case "stats":
        this.#meter.stats(workerId, event.stats);
        return;
      case "gap":
        for (const request of this.#requestsOf(event.groupId, event.sampleIndex)) {
          this.#registry.missing(request, workerId, event.offset);
        }
        return;
      case "failed":
        this.#failed(workerId, event.message);
        return;
      case "preempted":
      case "reloaded":
        return;
    }
  }

  #tokens(workerId: WorkerId, event: Extract<WorkerEvent, { kind: "tokens" }>): void {
    const request = this.#buffer.request(event.requestId);
    if (request.status !== "running" || request.workerId !== workerId) {
      this.#meter.duplicated(event.tokens.length);
      return;
    }
    const result = request.response.append(event.offset, event.tokens, event.logprobs);
    if (result.kind === "gap") {
      this.#meter.lost(result.missing);
      this.#failed(workerId, `lost ${result.missing} tokens of request ${event.requestId}`);
      return;
    }
    this.#meter.tokens(workerId, result.fresh);
    this.#meter.duplicated(result.repeated);
    this.#context.progressed(request);
    this.#scheduler.refresh(request.group);
    this.#registry.generated(request, workerId);
  }

  #chunkDone(workerId: WorkerId, event: Extract<WorkerEvent, { kind: "chunk_done" }>): void {
    const request = this.#buffer.request(event.requestId);
    if (request.status !== "running" || request.workerId !== workerId) return;
    if (event.finish !== null) {
      this.#ledger.add(workerId, { inFlight: -1, kvTokens: -request.residentTokens });
      request.response.finish = event.finish;
      this.#finish(request);
      return;
    }
    const held = contextTokens(request);
    this.#ledger.add(workerId, { inFlight: -1, kvTokens: held - request.residentTokens });
    request.residentTokens = held;
    request.status = "waiting";
    this.#scheduler.enqueue(request);
  }

  #finish(request: Request): void {
    const { requestId } = request.spec;
    const isGroupDone = this.#buffer.finish(request);
    this.#context.finished(request);
    this.#scheduler.refresh(request.group);
    this.#releasePooled(requestId);
    this.#meter.requestFinished();
    if (this.#options.draft === "self" || isGroupDone) {
      for (const [workerId, updates] of this.#registry.retired(request)) {
        for (const update of updates) this.#post(workerId, update);
      }
    }
    if (isGroupDone) this.#options.onGroup(request.group);
  }

  /** The KV of a request has left its worker, or is known to be gone (`kv` null). */
  #exported(request: Request, kv: KvBlob | null): void {
    const { requestId } = request.spec;
    const leaving = this.#exporting.get(requestId);
    if (leaving === undefined) return;
    this.#exporting.delete(requestId);
    this.#ledger.add(leaving.from, { inFlight: 0, kvTokens: -leaving.tokens });
    if (kv !== null) this.#store(request, kv);
    const pending = this.#pending.get(requestId);
    if (pending === undefined) return;
    this.#pending.delete(requestId);
    this.#launchFromPool(request, pending);
  }

  #store(request: Request, kv: KvBlob): void {
    const { pool, epoch } = this.#options;
    const { requestId } = request.spec;
    const key = kvKey(epoch, allTokens(request), kv.tokens);
    if (this.#pooled.get(requestId)?.key === key) return;
    this.#releasePooled(requestId);
    if (!pool.put(key, kv.bytes)) return;
    if (this.#pending.has(requestId)) pool.lease(key, KV_LEASE_MS);
    this.#pooled.set(requestId, { key, tokens: kv.tokens });
    this.#pooledBy.set(key, (this.#pooledBy.get(key) ?? 0) + 1);
    this.#meter.pool(pool.stats());
  }

  #releasePooled(requestId: RequestId): void {
    const pooled = this.#pooled.get(requestId);
    if (pooled === undefined) return;
    this.#pooled.delete(requestId);
    const others = (this.#pooledBy.get(pooled.key) ?? 1) - 1;
    if (others > 0) {
      this.#pooledBy.set(pooled.key, others);
    } else {
      this.#pooledBy.delete(pooled.key);
      this.#options.pool.release([pooled.key]);
    }
  }

  #evicted(workerId: WorkerId, request: Request): void {
    if (request.status !== "waiting" || request.residentOn !== workerId) return;
    this.#ledger.add(workerId, { inFlight: 0, kvTokens: -request.residentTokens });
    request.residentOn = null;
    request.residentTokens = 0;
    this.#scheduler.unparked(request);
  }

  /** A worker is gone: what it ran goes back to the buffer and is recomputed elsewhere. */
  #failed(workerId: WorkerId, message: string): void {
    this.#ledger.remove(workerId);
    this.#registry.forget(workerId);
    this.#outbox.delete(workerId);
    if (this.#ledger.workerCount === 0) {
      throw new AppError("no_worker", `worker ${workerId} failed and none is left: ${message}`);
    }
    for (const [id, leaving] of [...this.#exporting]) {
      if (leaving.from === workerId) this.#exported(this.#buffer.request(id), null);
    }
    for (const request of this.#buffer.requests) {
      if (request.residentOn !== workerId) continue;
      request.residentOn = null;
      request.residentTokens = 0;
      if (request.status === "waiting") {
        this.#scheduler.unparked(request);
      } else {
        this.#pending.delete(request.spec.requestId);
        request.status = "waiting";
        this.#scheduler.enqueue(request);
      }
    }
  }

  #pump(): void {
    if (this.#ended) return;
    if (this.#buffer.finishedCount === this.#buffer.requests.length) {
      this.#end(false);
      return;
    }
    for (const command of this.#scheduler.schedule(this.#ledger.slots())) this.#execute(command);
    this.#multicast();
    this.#flush();
  }

  #multicast(): void {
    const nowMs = this.#options.clock.nowMs();
    if (nowMs < this.#deltasDueMs) return;
    this.#deltasDueMs = nowMs + DELTA_INTERVAL_MS;
    for (const workerId of this.#registry.stale()) {
      for (const update of this.#registry.flush(workerId)) this.#post(workerId, update);
    }
  }

  #execute(command: ScheduleCommand): void {
    const { request, workerId } = command;
    if (command.kind === "offload") {
      this.#startExport(request);
      return;
    }
    const { chunkTokens } = command;
    const isThere = request.residentOn === workerId;
    if (request.residentOn !== null && !isThere) this.#startExport(request);
    if (request.workerId !== null && request.workerId !== workerId) this.#meter.migration();
    const reserved = contextTokens(request) + chunkTokens;
    const already = isThere ? request.residentTokens : 0;
    this.#ledger.add(workerId, { inFlight: 1, kvTokens: reserved - already });
    request.residentOn = workerId;
    request.residentTokens = reserved;
    if (isThere) {
      this.#launch(request, { workerId, chunkTokens }, null);
      return;
    }
    request.status = "moving";
    if (this.#exporting.has(request.spec.requestId)) {
      this.#pending.set(request.spec.requestId, { workerId, chunkTokens });
    } else {
      this.#launchFromPool(request, { workerId, chunkTokens });
    }
  }

  #startExport(request: Request): void {
    const from = present(request.residentOn, "only resident KV is exported");
    const { requestId } = request.spec;
    assert(!this.#exporting.has(requestId), "KV leaves a worker once");
    this.#exporting.set(requestId, { from, tokens: request.residentTokens });
    request.residentOn = null;
    request.residentTokens = 0;
    this.#post(from, { kind: "export", requestId });
  }

  #launchFromPool(request: Request, pending: Pending): void {
    const pooled = this.#pooled.get(request.spec.requestId);
    if (pooled === undefined) {
      this.#launch(request, pending, null);
      return;
    }
    request.status = "moving";
    void this.#options.pool.get(pooled.key).then((bytes) => {
      // While the disk was read, the worker may have failed and the request gone back to the buffer.
      const isStillWanted =
        request.status === "moving" && request.residentOn === pending.workerId && !this.#ended;
      if (!isStillWanted) return;
      this.#guard(() => {
        if (bytes !== null && request.workerId !== pending.workerId) {
          this.#meter.migratedBytes(bytes.byteLength);
        }
        this.#launch(request, pending, bytes === null ? null : { tokens: pooled.tokens, bytes });
        this.#flush();
      });
    });
  }

  #launch(request: Request, pending: Pending, kv: KvBlob | null): void {
    const { workerId, chunkTokens } = pending;
    request.status = "running";
    request.workerId = workerId;
    request.response.openChunk(workerId);
    this.#meter.chunk();
    // The worker must have the request's own text before it adds to it; its siblings' can follow.
    for (const update of this.#registry.dispatched(request, workerId)) this.#post(workerId, update);
    for (const update of this.#registry.flush(workerId, request)) this.#post(workerId, update);
    this.#post(workerId, {
      kind: "run",
      request: request.spec,
      output: request.response.tokens().slice(),
      chunkTokens,
      priority: this.#scheduler.isUrgent(request) ? "high" : "low",
      kv,
      draft: this.#registry.source(request),
    });
  }

  #requestsOf(id: string, sampleIndex: number): Request[] {
    return this.#buffer.requests.filter((request) => {
      const source = this.#registry.source(request);
      return source !== null && source.groupId === id && source.sampleIndex === sampleIndex;
    });
  }

  #post(workerId: WorkerId, command: WorkerCommand): void {
    const commands = this.#outbox.get(workerId);
    if (commands === undefined) this.#outbox.set(workerId, [command]);
    else commands.push(command);
  }

  #flush(): void {
    for (const [workerId, commands] of this.#outbox) this.#ledger.worker(workerId)?.send(commands);
    this.#outbox.clear();
  }

  /** Runs one turn; whatever it throws ends the rollout with that error. */
  #guard(turn: () => void): void {
    try {
      turn();
    } catch (error) {
      this.#ended = true;
      this.#done.reject(error);
    }
  }

  #end(interrupted: boolean): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#meter.ended();
    this.#flush();
    const { policy, draft, deterministic, epoch, pool } = this.#options;
    this.#done.resolve(
      this.#meter.report({ policy, draft, deterministic, epoch, interrupted, pool: pool.stats() }),
    );
  }
}

function allTokens(request: Request): Int32Array {
  const tokens = new Int32Array(contextTokens(request));
  tokens.set(request.spec.prompt);
  tokens.set(request.response.tokens(), request.spec.prompt.length);
  return tokens;
}
