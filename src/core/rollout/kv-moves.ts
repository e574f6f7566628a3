// Moves the KV of requests: off workers, into the KV pool, to other workers, and from one turn of a session to the next.
// Performs the executor's steps as commands to workers. Begins no chunk: `launch` does, once the KV is known.

import type { RequestId, WeightsId, WorkerId } from "../base/ids.ts";
import type { KvPool } from "../kv/pool.ts";
import type { Request } from "../request/buffer.ts";
import { Executor, type ExecutorSteps, type Target } from "./executor.ts";
import type { RolloutParts } from "./parts.ts";
import { PooledKv } from "./pooled-kv.ts";
import type { KvBlob, Worker } from "./worker.ts";

/** The turn of a session before a request. */
export interface PreviousTurn {
  readonly request: Request;
  /** Number of first tokens of its prompt and response with which the new prompt begins. */
  readonly sharedTokens: number;
}

/** Begins the request's chunk on its worker, which loads `kv` for it; null: it has the KV, or computes it. */
type Launch = (request: Request, target: Target, kv: KvBlob | null) => void;

export class KvMoves implements ExecutorSteps {
  readonly executor: Executor;
  readonly #parts: RolloutParts;
  readonly #pool: KvPool;
  readonly #pooled: PooledKv;
  readonly #launch: Launch;

  constructor(parts: RolloutParts, pool: KvPool, launch: Launch) {
    this.#parts = parts;
    this.#pool = pool;
    this.#launch = launch;
    this.executor = new Executor(parts.ledger, this);
    this.#pooled = new PooledKv(pool, () => parts.meter.count("kv_pool_failures"));
  }

  depart({ spec: { requestId } }: Request, from: WorkerId): void {
    this.#parts.outbox.post(from, { kind: "export", requestId });
  }

  preempt({ spec: { requestId } }: Request, from: WorkerId): void {
    this.#parts.meter.count("chunks_ended_early");
    this.#parts.outbox.post(from, { kind: "export", requestId });
  }

  drop({ spec: { requestId } }: Request, from: WorkerId): void {
    this.#parts.outbox.post(from, { kind: "release", requestId });
  }

  begin(request: Request, target: Target): void {
    this.#launch(request, target, null);
  }

  migrated(): void {
    this.#parts.meter.count("migrations");
  }

  pooledTokens({ spec: { requestId }, residentOn }: Request): number {
    if (residentOn === null) return 0;
    return this.#pooled.blob(requestId, this.#weightsOf(residentOn))?.tokens ?? 0;
  }

  load(request: Request, target: Target): void {
    const { epoch, meter, turn } = this.#parts;
    const blob = this.#pooled.blob(request.spec.requestId, this.#weightsOf(target.workerId));
    if (blob === null) {
      this.#launch(request, target, null);
      return;
    }
    const epochBefore = epoch();
    void this.#pooled.bytes(blob).then((bytes) => {
      // While the disk was read, the worker may have failed, the request gone back to the buffer or been
      // given up, or the weights changed.
      const isStillWanted =
        request.status === "moving" &&
        request.residentOn === target.workerId &&
        epoch() === epochBefore;
      if (!isStillWanted) return;
      turn(() => {
        if (bytes !== null && request.workerId !== target.workerId) {
          meter.count("migrated_bytes", bytes.byteLength);
        }
        this.#launch(request, target, bytes === null ? null : { tokens: blob.tokens, bytes });
      });
    });
  }

  /** The KV of a request has left its worker, or is known to be gone (`kv` null). */
  exported(requestId: RequestId, kv: KvBlob | null, from: WorkerId): void {
    const { buffer, epoch, meter } = this.#parts;
    const departure = this.executor.departed(requestId);
    const request = buffer.request(requestId);
    if (request === null) return;
    if (request.status === "finished" && request.spec.keepsKv !== true) return;
    // Preempted: its chunk is over, and its KV has left with it.
    if (departure === null && !isParkedOn(from, request)) return;
    const target = departure?.target ?? null;
    // KV of tokens that are not known, as after a lost frame of them, has no name.
    const known = request.spec.prompt.length + request.response.length;
    if (kv !== null && kv.tokens <= known) {
      const weights = this.#weightsOf(from);
      this.#pooled.store(request, { kv, epoch: epoch(), weights, leased: target !== null });
      meter.pool(this.#pool.stats());
    }
    if (departure === null) this.evicted(from, request);
    if (target !== null) this.load(request, target);
  }

  /** KV that is leaving the worker does not arrive any more: requests go on without it. */
  cutOff(workerId: WorkerId): void {
    for (const id of this.executor.leaving(workerId)) this.exported(id, null, workerId);
  }

  /** All KV leaves the worker, and chunks end for that; undivided requests run on. */
  vacate(workerId: WorkerId): void {
    const { ledger, buffer, scheduler } = this.#parts;
    const ending = [...ledger.running(workerId)].filter(({ spec }) => spec.divisible);
    for (const request of ending) this.executor.execute({ kind: "preempt", request, workerId });
    for (const request of buffer.requests) {
      if (!isParkedOn(workerId, request)) continue;
      scheduler.unparked(request);
      this.executor.execute({ kind: "offload", request, workerId });
    }
  }

  /** The worker has dropped KV that was parked there. */
  evicted(workerId: WorkerId, request: Request | null): void {
    if (request === null || !isParkedOn(workerId, request)) return;
    this.executor.evicted(request);
    this.#parts.scheduler.unparked(request);
  }

  /** The next turn of a session goes on from the KV of the turn before, as far as it shares its tokens. */
  inherit(next: Request, { request: from, sharedTokens }: PreviousTurn): void {
    next.turn = from.turn + 1;
    this.#parts.context.continued(next, from);
    if (from.status !== "finished") return;
    next.workerId = from.workerId;
    next.computedTokens = sharedTokens;
    const gapMs = this.#parts.clock.nowMs() - (from.response.finishedMs ?? 0);
    this.#parts.scheduler.returns.came(gapMs, next.tool ?? from.tool);
    next.tool ??= from.tool;
    this.#pooled.inherit(next, from, sharedTokens);
    const tokens = Math.min(sharedTokens, from.residentTokens);
    if (from.residentOn !== null && tokens > 0) {
      this.#parts.scheduler.unparked(from);
      const workerId = this.executor.inherit(next, from, tokens);
      const { requestId } = next.spec;
      const adopt = { kind: "adopt", requestId, from: from.spec.requestId, tokens } as const;
      this.#parts.outbox.post(workerId, adopt);
    }
    // KV that the new turn cannot continue from.
    this.letGo(from);
  }

  /** Frees what a finished request has kept, on its worker and in the pool. */
  letGo(request: Request): void {
    this.#parts.scheduler.unparked(request);
    this.release(request);
    this.#pooled.release(request.spec.requestId);
  }

  /** Frees what the request holds on its worker. */
  release(request: Request): void {
    const { requestId } = request.spec;
    const holder = this.executor.release(request);
    if (holder !== null) this.#parts.outbox.post(holder, { kind: "release", requestId });
  }

  /** Removes the KV of a finished request from the pool. */
  finished(request: Request): void {
    this.#pooled.release(request.spec.requestId);
  }

  /** Parks the request's KV on its worker for the next turn. false: the worker cannot. */
  park(request: Request): boolean {
    const worker = this.#keeperOf(request);
    if (worker === null) return false;
    const { requestId } = request.spec;
    this.#parts.outbox.post(worker.workerId, { kind: "park", requestId });
    this.retain(request);
    return true;
  }

  /** The KV of a finished turn stays where it is. */
  retain(request: Request): void {
    this.executor.parked(request);
    this.#parts.scheduler.retained(request);
  }

  /** No worker holds anything, and nothing in the pool is of use. */
  clear(): void {
    this.#pooled.clear();
    this.executor.clear();
    for (const group of this.#parts.buffer.groups) group.promptOn.clear();
    for (const request of this.#parts.buffer.requests) request.computedTokens = 0;
  }

  /** The worker that can park what it runs of the request for the next turn; null: there is none. */
  #keeperOf({ spec, status, workerId }: Request): Worker | null {
    if (spec.keepsKv !== true || !spec.divisible || status !== "running") return null;
    const worker = workerId === null ? null : this.#parts.ledger.worker(workerId);
    return worker?.keepsKv === true ? worker : null;
  }

  #weightsOf(workerId: WorkerId): WeightsId | null {
    return this.#parts.ledger.worker(workerId)?.weights ?? null;
  }
}

function isParkedOn(workerId: WorkerId, request: Request): boolean {
  const isParked = request.status === "waiting" || request.status === "finished";
  return isParked && request.residentOn === workerId;
}
