// Where each request is, and how it gets to its next worker: one dispatch, from the scheduler's command to the `run` that
// a worker is sent, with the KV that goes along. It is the only one that changes the status of a request: `RequestBuffer`,
// which can, is in no other hands. It orders nothing, takes in no tokens and calls no listener: the loop does (`loop.ts`).
//
//   waiting --execute--> moving [KV leaves a worker] --> moving [KV is loaded] --> running --goesOn--> waiting
//   moving, running --lost, then waits--> waiting           waiting, moving, running --finish--> finished

import { assert, present } from "../base/assert.ts";
import type { Clock } from "../base/clock.ts";
import type { RequestId, WeightEpoch, WeightsId, WorkerId } from "../base/ids.ts";
import type { DraftRegistry } from "../draft/registry.ts";
import type { KvPool } from "../kv/pool.ts";
import {
  contextTokens,
  isSuspect,
  type RequestBuffer,
  type RolloutRequest,
} from "../request/buffer.ts";
import type { ChunkLength } from "../schedule/chunk-length.ts";
import { PULL_GAP_TOKENS } from "../schedule/placement.ts";
import type { ExecutableCommand, Scheduler } from "../schedule/scheduler.ts";
import type { DriftGuard } from "./drift-guard.ts";
import type { Ledger } from "./ledger.ts";
import type { Meter } from "./meter.ts";
import type { Pause } from "./pause.ts";
import { PooledKv } from "./pooled-kv.ts";
import { expertsWanted } from "./reports.ts";
import type { Outbox, Turns } from "./turns.ts";
import type { BoundedWaits } from "./waits.ts";
import type { EngineWorker, KvBlob } from "./worker.ts";

interface Target {
  readonly workerId: WorkerId;
  readonly chunkTokens: number;
}

interface Departure {
  readonly from: WorkerId;
  readonly tokens: number;
  readonly endWait: () => void;
}

export interface DispatchParts {
  readonly buffer: RequestBuffer;
  readonly scheduler: Scheduler;
  readonly ledger: Ledger;
  readonly pool: KvPool;
  readonly outbox: Outbox;
  readonly registry: DraftRegistry;
  readonly drift: DriftGuard;
  readonly chunks: ChunkLength;
  readonly pause: Pause;
  readonly meter: Meter;
  readonly clock: Clock;
  readonly turns: Turns;
  readonly waits: BoundedWaits;
  readonly epoch: WeightEpoch;
}

export class Dispatch {
  readonly #parts: DispatchParts;
  readonly #buffer: RequestBuffer;
  readonly #ledger: Ledger;
  readonly #pooled: PooledKv;
  #epoch: WeightEpoch;
  /** KV on its way out of a worker. */
  readonly #departing = new Map<RequestId, Departure>();
  /** Chunks that were assigned while their request's KV is still leaving another worker. */
  readonly #pending = new Map<RequestId, Target>();
  /** Running requests whose chunk was ordered to end, and the KV tokens that this frees. */
  readonly #ending = new Map<RolloutRequest, number>();

  constructor(parts: DispatchParts) {
    this.#parts = parts;
    this.#buffer = parts.buffer;
    this.#ledger = parts.ledger;
    this.#epoch = parts.epoch;
    this.#pooled = new PooledKv(parts.pool, () => parts.meter.count("kv_pool_failures"));
  }

  /** The weight epoch of the chunks that it starts. */
  get epoch(): WeightEpoch {
    return this.#epoch;
  }

  get isQuiet(): boolean {
    return this.#ledger.inFlight === 0 && this.#departing.size === 0;
  }

  get busyWorkers(): EngineWorker[] {
    const sources = new Set([...this.#departing.values()].map(({ from }) => from));
    return this.#ledger
      .workers()
      .filter(({ workerId }) => sources.has(workerId) || this.#ledger.isBusy(workerId));
  }

  // A dispatch, in the order in which it goes.

  execute(command: ExecutableCommand): void {
    const { request, workerId } = command;
    if (command.kind === "offload") this.#depart(request);
    else if (command.kind === "preempt") this.#preempt(request, workerId);
    else if (command.kind === "end") this.endChunk(request);
    else this.#assign(request, command, command.reservedTokens);
  }

  /** The request is the worker's from now on; its KV may have to come first. */
  #assign(
    request: RolloutRequest,
    { workerId, chunkTokens }: Target,
    reservedTokens: number,
  ): void {
    const target = { workerId, chunkTokens };
    if (isSuspect(request)) this.#ledger.suspect(workerId, request);
    this.#buffer.move(request, "moving");
    const isThere = request.residentOn === workerId;
    if (request.residentOn !== null && !isThere) this.#depart(request);
    if (request.workerId !== null && request.workerId !== workerId) {
      this.#parts.meter.count("migrations");
    }
    const already = isThere ? request.residentTokens : 0;
    this.#ledger.book(workerId, { inFlight: 1, kvTokens: reservedTokens - already });
    this.#reside(request, workerId, reservedTokens);
    const { requestId } = request.spec;
    if (isThere) this.#start(request, target, null);
    else if (this.#departing.has(requestId)) this.#pending.set(requestId, target);
    else this.#load(request, target);
  }

  /** The request goes on elsewhere: with its KV, unless that would have to wait for a lost connection or saves little. */
  #depart(request: RolloutRequest): void {
    const from = present(request.residentOn, "only resident KV leaves a worker");
    const { requestId } = request.spec;
    const tokens = request.residentTokens;
    const gap = tokens - (this.#pooled.blob(requestId, this.#weightsOf(from))?.tokens ?? 0);
    this.#displace(request);
    if (gap <= PULL_GAP_TOKENS || !this.#ledger.isReachable(from)) {
      this.#ledger.book(from, { inFlight: 0, kvTokens: -tokens });
      this.#parts.outbox.post(from, { kind: "release", requestId });
      return;
    }
    assert(!this.#departing.has(requestId), "KV leaves a worker once");
    const late = (): boolean => {
      this.#parts.meter.count("kv_waits_ended");
      this.exported(requestId, null, from);
      return true;
    };
    const what = `KV of request ${requestId} (engine ${from})`;
    const endWait = this.#parts.waits.begin("kv_out", what, late);
    this.#departing.set(requestId, { from, tokens, endWait });
    this.#ledger.leaving(from, tokens);
    this.#parts.outbox.post(from, { kind: "export", requestId });
  }

  /** The KV of a request has left its worker, or is known to be gone (`kv` null). */
  exported(requestId: RequestId, kv: KvBlob | null, from: WorkerId): void {
    const target = this.#pending.get(requestId) ?? null;
    const hasDeparted = this.#departed(requestId);
    const request = this.#buffer.request(requestId);
    if (request === null) return;
    if (request.status === "finished" && request.spec.keepsKv !== true) return;
    // Preempted: its chunk is over, and its KV has left with it.
    if (!hasDeparted && !isParkedOn(from, request)) return;
    // KV of tokens that are not known, as after a lost frame of them, has no name.
    if (kv !== null && kv.tokens <= contextTokens(request)) {
      const weights = this.#weightsOf(from);
      this.#pooled.store(request, kv, { epoch: this.#epoch, weights });
      this.#parts.meter.pool(this.#parts.pool.stats());
    }
    if (!hasDeparted) this.evicted(from, request);
    if (target !== null) this.#load(request, target);
  }

  /** false: the KV was not leaving. */
  #departed(requestId: RequestId): boolean {
    const departure = this.#departing.get(requestId);
    if (departure === undefined) return false;
    departure.endWait();
    this.#departing.delete(requestId);
    this.#pending.delete(requestId);
    this.#ledger.book(departure.from, { inFlight: 0, kvTokens: -departure.tokens });
    this.#ledger.leaving(departure.from, -departure.tokens);
    return true;
  }

  /** Brings the target whatever the KV pool has of the request, and starts its chunk, at once or later. */
  #load(request: RolloutRequest, target: Target): void {
    const { meter, turns, waits } = this.#parts;
    const { requestId } = request.spec;
    const { workerId } = target;
    const blob = this.#pooled.blob(requestId, this.#weightsOf(workerId));
    if (blob === null) {
      this.#start(request, target, null);
      return;
    }
    const epoch = this.#epoch;
    // While the disk is read, the worker may fail, the request go back to the buffer or be given up, or the weights
    // change; or it takes too long, after which the same move may be made again.
    let isLate = false;
    const isAwaited = (): boolean =>
      !isLate &&
      request.status === "moving" &&
      request.residentOn === workerId &&
      this.#epoch === epoch;
    const late = (): boolean => {
      if (!isAwaited()) return false;
      isLate = true;
      meter.count("kv_waits_ended");
      this.#start(request, target, null);
      return true;
    };
    const what = `KV of request ${requestId} (engine ${workerId})`;
    const endWait = waits.begin("kv_in", what, late);
    void this.#pooled.bytes(blob).then((bytes) => {
      endWait();
      if (!isAwaited()) return;
      turns.run(() => {
        if (bytes !== null && request.workerId !== workerId) {
          meter.count("migrated_bytes", bytes.byteLength);
        }
        this.#start(request, target, bytes === null ? null : { tokens: blob.tokens, bytes });
      });
    });
  }

  /** The request's chunk begins on its worker, which loads `kv` for it; null: it has the KV, or computes it. */
  #start(request: RolloutRequest, { workerId, chunkTokens }: Target, kv: KvBlob | null): void {
    const { clock, meter, chunks, registry, drift, scheduler, outbox, pause } = this.#parts;
    const worker = this.#ledger.worker(workerId);
    this.#buffer.whereabouts(request).workerId = workerId;
    request.group.promptOn.add(workerId);
    this.#ledger.begun(workerId, request);
    this.#buffer.move(request, "running");
    const startMs = clock.nowMs();
    const began = { startMs, tokensMax: chunkTokens, kvTokens: kv?.tokens ?? 0 };
    request.response.openChunk(workerId, this.#epoch, worker?.weights ?? null, began);
    request.response.startedMs ??= startMs;
    meter.count("chunks");
    chunks.began(request, startMs);
    if (worker !== null && worker.capacity.drafts !== false) registry.begin(request, workerId);
    outbox.post(workerId, {
      kind: "run",
      request: request.spec,
      output: request.response.copied(),
      chunkTokens,
      priority: scheduler.isUrgent(request) ? "high" : "low",
      kv,
      draft: drift.mayDraft(workerId) ? registry.source(request) : null,
      ...expertsWanted(request),
    });
    if (pause.mode === "keep") this.endChunk(request);
  }

  // While a request runs.

  running(id: RequestId, workerId: WorkerId): RolloutRequest | null {
    const request = this.#buffer.request(id);
    return request?.status === "running" && request.workerId === workerId ? request : null;
  }

  /** Updates the reservation of a running request that has new tokens. */
  reached(request: RolloutRequest): void {
    const workerId = present(request.residentOn, "a request that runs is resident");
    const held = this.#ledger.reserve(workerId, contextTokens(request), request.residentTokens);
    this.#buffer.whereabouts(request).residentTokens = held;
  }

  /** The chunk of a running request that may be divided is to end with the tokens that it has. */
  endChunk({ status, workerId, spec: { divisible, requestId } }: RolloutRequest): void {
    if (status !== "running" || workerId === null || !divisible) return;
    this.#parts.outbox.post(workerId, { kind: "park", requestId });
  }

  #preempt(request: RolloutRequest, from: WorkerId): void {
    assert(request.status === "running", "only a running request is preempted");
    this.#parts.meter.count("chunks_ended_early");
    this.#ending.set(request, request.residentTokens);
    this.#ledger.ended(from, request);
    this.#ledger.leaving(from, request.residentTokens);
    this.#parts.outbox.post(from, { kind: "export", requestId: request.spec.requestId });
  }

  // A request runs no more.

  goesOn(request: RolloutRequest): void {
    this.#parked(request);
    this.#buffer.move(request, "waiting");
  }

  /** Everything that the request has on its worker is gone with the worker, or with the weights. */
  lost(request: RolloutRequest): void {
    this.#pending.delete(request.spec.requestId);
    if (request.residentOn !== null) this.#ended(request, request.residentOn);
    this.#displace(request);
  }

  /** A request that has lost all that it had on a worker waits again. */
  waits(request: RolloutRequest): void {
    this.#buffer.move(request, "waiting");
  }

  /** The response is complete, or given up; what the request held on a worker has been given back, or stays for the next turn. */
  finish(request: RolloutRequest): void {
    this.#buffer.move(request, "finished");
    this.#pooled.release(request.spec.requestId);
  }

  /** Frees what the request holds on its worker. */
  release(request: RolloutRequest): void {
    const { residentOn, status } = request;
    const { requestId } = request.spec;
    this.freed(request);
    // What is still moving has not been sent to the worker.
    if (residentOn === null || status === "moving") return;
    this.#parts.outbox.post(residentOn, { kind: "release", requestId });
  }

  /** Gives back what the request held on its worker, which has freed it by itself. */
  freed(request: RolloutRequest): void {
    this.#pending.delete(request.spec.requestId);
    const { residentOn, residentTokens, status } = request;
    if (residentOn === null) return;
    this.#ended(request, residentOn);
    const inFlight = status === "moving" || status === "running" ? -1 : 0;
    this.#ledger.book(residentOn, { inFlight, kvTokens: -residentTokens });
    this.#displace(request);
  }

  /** The request's KV stays where it is until it is wanted elsewhere. */
  #parked(request: RolloutRequest): void {
    const workerId = present(request.residentOn, "a request that ran is resident");
    this.#ended(request, workerId);
    const held = contextTokens(request);
    this.#ledger.book(workerId, { inFlight: -1, kvTokens: held - request.residentTokens });
    this.#buffer.whereabouts(request).residentTokens = held;
  }

  /** The worker has dropped KV that was parked there. */
  evicted(workerId: WorkerId, request: RolloutRequest | null): void {
    if (request === null || !isParkedOn(workerId, request)) return;
    this.#ledger.book(workerId, { inFlight: 0, kvTokens: -request.residentTokens });
    this.#displace(request);
    this.#parts.scheduler.unparked(request);
  }

  // From one turn of a session to the next.

  /** The KV of a finished turn stays where it is. */
  retain(request: RolloutRequest): void {
    this.#parked(request);
    this.#parts.scheduler.retained(request);
  }

  /** Parks the KV of a turn that ends now on its worker, for the next one. false: the worker cannot. */
  park(request: RolloutRequest): boolean {
    const { spec, status, workerId } = request;
    if (spec.keepsKv !== true || !spec.divisible || status !== "running") return false;
    const worker = workerId === null ? null : this.#ledger.worker(workerId);
    if (worker?.keepsKv !== true) return false;
    this.#parts.outbox.post(worker.workerId, { kind: "park", requestId: spec.requestId });
    this.retain(request);
    return true;
  }

  /** The next turn goes on from the KV of the turn before, as far as it shares its tokens. */
  inherit(next: RolloutRequest, from: RolloutRequest, sharedTokens: number): void {
    const whereabouts = this.#buffer.whereabouts(next);
    whereabouts.workerId = from.workerId;
    whereabouts.computedTokens = sharedTokens;
    this.#pooled.inherit(next, from, sharedTokens);
    const tokens = Math.min(sharedTokens, from.residentTokens);
    const workerId = from.residentOn;
    if (workerId !== null && tokens > 0) {
      assert(next.status === "waiting" && next.residentOn === null, "an heir has no KV");
      this.#parts.scheduler.unparked(from);
      this.#ledger.book(workerId, { inFlight: 0, kvTokens: tokens - from.residentTokens });
      this.#displace(from);
      this.#reside(next, workerId, tokens);
      const ids = { requestId: next.spec.requestId, from: from.spec.requestId };
      this.#parts.outbox.post(workerId, { kind: "adopt", ...ids, tokens });
    }
    // KV that the new turn cannot continue from.
    this.letGo(from);
  }

  /** Frees what a finished request has kept, on its worker and in the pool. */
  letGo(request: RolloutRequest): void {
    this.#parts.scheduler.unparked(request);
    this.release(request);
    this.#pooled.release(request.spec.requestId);
  }

  // Workers and weights.

  /** KV that is leaving the worker does not arrive any more: requests go on without it. */
  cutOff(workerId: WorkerId): void {
    for (const [id, { from }] of [...this.#departing]) {
      if (from === workerId) this.exported(id, null, workerId);
    }
  }

  /** All KV leaves the worker, and chunks end for that; undivided requests run on. */
  vacate(workerId: WorkerId): void {
    const ending = [...this.#ledger.running(workerId)].filter(({ spec }) => spec.divisible);
    for (const request of ending) this.#preempt(request, workerId);
    for (const request of this.#buffer.requests) {
      if (!isParkedOn(workerId, request)) continue;
      this.#parts.scheduler.unparked(request);
      this.#depart(request);
    }
  }

  /** No worker holds anything, and nothing in the pool is of use. Every request is `lost` as well. */
  clear(): void {
    this.#pooled.clear();
    for (const { endWait } of this.#departing.values()) endWait();
    this.#departing.clear();
    this.#pending.clear();
    this.#ending.clear();
    this.#ledger.clear();
    for (const group of this.#buffer.groups) group.promptOn.clear();
    for (const request of this.#buffer.requests) {
      this.#buffer.whereabouts(request).computedTokens = 0;
    }
  }

  advance(epoch: WeightEpoch): void {
    this.#epoch = epoch;
  }

  #ended(request: RolloutRequest, workerId: WorkerId): void {
    this.#ledger.ended(workerId, request);
    const tokens = this.#ending.get(request);
    if (tokens === undefined) return;
    this.#ending.delete(request);
    this.#ledger.leaving(workerId, -tokens);
  }

  #reside(request: RolloutRequest, workerId: WorkerId, tokens: number): void {
    if (request.residentOn === null) this.#ledger.resides(workerId, request, 1);
    const whereabouts = this.#buffer.whereabouts(request);
    whereabouts.residentOn = workerId;
    whereabouts.residentTokens = tokens;
  }

  #displace(request: RolloutRequest): void {
    if (request.residentOn !== null) this.#ledger.resides(request.residentOn, request, -1);
    const whereabouts = this.#buffer.whereabouts(request);
    whereabouts.residentOn = null;
    whereabouts.residentTokens = 0;
  }

  #weightsOf(workerId: WorkerId): WeightsId | null {
    return this.#ledger.worker(workerId)?.weights ?? null;
  }
}

function isParkedOn(workerId: WorkerId, request: RolloutRequest): boolean {
  const isParked = request.status === "waiting" || request.status === "finished";
  return isParked && request.residentOn === workerId;
}
