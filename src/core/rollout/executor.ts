// The state machine of execution: which worker holds the KV of each request, which KV is leaving a worker, and which
// chunk waits for that. It turns a scheduler's command into the next step of its request and keeps the ledger. It
// performs nothing, and changes no request's status: the rollout does.
//
//   waiting --dispatch--> [moving: KV leaves a worker] --> [moving: KV is loaded] --> running --end of chunk--> waiting

import { assert, present } from "../base/assert.ts";
import type { RequestId, WorkerId } from "../base/ids.ts";
import { contextTokens, type Request } from "../request/buffer.ts";
import { PULL_GAP_TOKENS } from "../schedule/placement.ts";
import type { ExecutableCommand } from "../schedule/scheduler.ts";
import type { Ledger } from "./ledger.ts";

/** Where a request runs next, and for how many output tokens. */
export interface Target {
  readonly workerId: WorkerId;
  readonly chunkTokens: number;
}

/** Steps for the owner of the engines. `execute` calls each at most once. */
export interface ExecutorSteps {
  /** Take the KV of the request off the worker, `tokens` of it, and call `departed` when it has left. */
  depart(request: Request, from: WorkerId, tokens: number): void;
  /** End the request's chunk now, and hand its KV out: call `parked` and, once it is gone, `evicted`. */
  preempt(request: Request, from: WorkerId): void;
  /** Free what the worker holds of the request; the request does not wait for it. */
  drop(request: Request, from: WorkerId): void;
  /** Bring the target whatever the KV pool has of the request, then call `start`, at once or later. */
  load(request: Request, target: Target): void;
  /** The request's KV is on the worker already: call `start`. */
  begin(request: Request, target: Target): void;
  /** The request goes on at another worker than before. */
  migrated(request: Request): void;
  /** KV tokens of the request that the pool has. */
  pooledTokens(request: Request): number;
}

interface Departure {
  readonly from: WorkerId;
  readonly tokens: number;
}

export class Executor {
  readonly #ledger: Ledger;
  readonly #steps: ExecutorSteps;
  readonly #departing = new Map<RequestId, Departure>();
  /** Chunks that were assigned while their request's KV is still leaving another worker. */
  readonly #pending = new Map<RequestId, Target>();
  /** Running requests whose chunk was ordered to end, and the KV tokens that this frees. */
  readonly #ending = new Map<Request, number>();

  constructor(ledger: Ledger, steps: ExecutorSteps) {
    this.#ledger = ledger;
    this.#steps = steps;
  }

  /** No KV is leaving a worker. */
  get isStill(): boolean {
    return this.#departing.size === 0;
  }

  /** Workers that KV is leaving. */
  get sources(): ReadonlySet<WorkerId> {
    return new Set([...this.#departing.values()].map(({ from }) => from));
  }

  /** Requests whose KV is leaving the worker. */
  leaving(workerId: WorkerId): RequestId[] {
    return [...this.#departing].flatMap(([id, { from }]) => (from === workerId ? [id] : []));
  }

  execute(command: ExecutableCommand): void {
    const { request, workerId } = command;
    if (command.kind === "offload") {
      this.#depart(request);
      return;
    }
    if (command.kind === "preempt") {
      this.#preempt(request, workerId);
      return;
    }
    const target = { workerId, chunkTokens: command.chunkTokens };
    const isThere = request.residentOn === workerId;
    if (request.residentOn !== null && !isThere) this.#depart(request);
    if (request.workerId !== null && request.workerId !== workerId) this.#steps.migrated(request);
    const reserved = command.reservedTokens;
    const already = isThere ? request.residentTokens : 0;
    this.#ledger.book(workerId, { inFlight: 1, kvTokens: reserved - already });
    this.#reside(request, workerId, reserved);
    if (isThere) {
      this.#steps.begin(request, target);
      return;
    }
    const { requestId } = request.spec;
    if (this.#departing.has(requestId)) this.#pending.set(requestId, target);
    else this.#steps.load(request, target);
  }

  /** The chunk begins. */
  start(request: Request, { workerId }: Target): void {
    request.workerId = workerId;
    request.group.promptOn.add(workerId);
    this.#ledger.begun(workerId, request);
  }

  /** Updates the reservation of a running request that has `context` tokens now. */
  reached(request: Request, context: number): void {
    const workerId = present(request.residentOn, "a request that runs is resident");
    request.residentTokens = this.#ledger.reserve(workerId, context, request.residentTokens);
  }

  /**
   * The KV of a request has left its worker, or is known to be gone. null: it was not leaving. `target`: where it is
   * wanted; the caller loads it there. null: nowhere yet.
   */
  departed(
    requestId: RequestId,
  ): { readonly from: WorkerId; readonly target: Target | null } | null {
    const departure = this.#departing.get(requestId);
    if (departure === undefined) return null;
    this.#departing.delete(requestId);
    this.#ledger.book(departure.from, { inFlight: 0, kvTokens: -departure.tokens });
    this.#ledger.leaving(departure.from, -departure.tokens);
    const target = this.#pending.get(requestId) ?? null;
    this.#pending.delete(requestId);
    return { from: departure.from, target };
  }

  /** The request's chunk is over and it goes on: its KV stays where it is until it is wanted elsewhere. */
  parked(request: Request): void {
    const workerId = present(request.residentOn, "a request that ran is resident");
    this.#ended(request, workerId);
    const held = contextTokens(request);
    this.#ledger.book(workerId, { inFlight: -1, kvTokens: held - request.residentTokens });
    request.residentTokens = held;
  }

  /** The request needs nothing any more: gives back what it holds. Returns the worker that still has to drop it. */
  release(request: Request): WorkerId | null {
    this.#pending.delete(request.spec.requestId);
    const { residentOn, residentTokens, status } = request;
    if (residentOn === null) return null;
    this.#ended(request, residentOn);
    const inFlight = status === "moving" || status === "running" ? -1 : 0;
    this.#ledger.book(residentOn, { inFlight, kvTokens: -residentTokens });
    this.#displace(request);
    return status === "moving" ? null : residentOn;
  }

  /** `heir` has not run yet, and goes on from the first `tokens` tokens of KV that a finished request has parked. */
  inherit(heir: Request, from: Request, tokens: number): WorkerId {
    const workerId = present(from.residentOn, "KV that is inherited is resident");
    assert(heir.status === "waiting" && heir.residentOn === null, "an heir has no KV");
    assert(0 < tokens && tokens <= from.residentTokens, "0 < tokens <= residentTokens");
    this.#ledger.book(workerId, { inFlight: 0, kvTokens: tokens - from.residentTokens });
    this.#displace(from);
    this.#reside(heir, workerId, tokens);
    return workerId;
  }

  /** The worker has dropped parked KV. */
  evicted(request: Request): void {
    const workerId = present(request.residentOn, "KV that is dropped was resident");
    this.#ledger.book(workerId, { inFlight: 0, kvTokens: -request.residentTokens });
    this.#displace(request);
  }

  /** Everything that the request has on its worker is gone with the worker, or with the weights. */
  lost(request: Request): void {
    this.#pending.delete(request.spec.requestId);
    if (request.residentOn !== null) this.#ended(request, request.residentOn);
    this.#displace(request);
  }

  /** No worker holds anything. Every request is `lost` as well. */
  clear(): void {
    this.#departing.clear();
    this.#pending.clear();
    this.#ending.clear();
    this.#ledger.clear();
  }

  /** The request goes on elsewhere: with its KV, unless that would have to wait for a lost connection or saves little. */
  #depart(request: Request): void {
    const from = present(request.residentOn, "only resident KV leaves a worker");
    const { requestId } = request.spec;
    const tokens = request.residentTokens;
    const gap = tokens - this.#steps.pooledTokens(request);
    this.#displace(request);
    if (gap <= PULL_GAP_TOKENS || !this.#ledger.isReachable(from)) {
      this.#ledger.book(from, { inFlight: 0, kvTokens: -tokens });
      this.#steps.drop(request, from);
      return;
    }
    assert(!this.#departing.has(requestId), "KV leaves a worker once");
    this.#departing.set(requestId, { from, tokens });
    this.#ledger.leaving(from, tokens);
    this.#steps.depart(request, from, tokens);
  }

  #preempt(request: Request, from: WorkerId): void {
    assert(request.status === "running", "only a running request is preempted");
    this.#ending.set(request, request.residentTokens);
    this.#ledger.ended(from, request);
    this.#ledger.leaving(from, request.residentTokens);
    this.#steps.preempt(request, from);
  }

  /** The request's chunk is over, in whatever way. */
  #ended(request: Request, workerId: WorkerId): void {
    this.#ledger.ended(workerId, request);
    const tokens = this.#ending.get(request);
    if (tokens === undefined) return;
    this.#ending.delete(request);
    this.#ledger.leaving(workerId, -tokens);
  }

  #reside(request: Request, workerId: WorkerId, tokens: number): void {
    if (request.residentOn === null) this.#ledger.resides(workerId, request, 1);
    request.residentOn = workerId;
    request.residentTokens = tokens;
  }

  #displace(request: Request): void {
    if (request.residentOn !== null) {
      this.#ledger.resides(request.residentOn, request, -1);
    }
    request.residentOn = null;
    request.residentTokens = 0;
  }
}
