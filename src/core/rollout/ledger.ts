// The rollout's account of each worker: requests in flight and KV tokens reserved
// by running and held by parked or departing requests. The scheduler's view is made from it.

import { assert } from "../base/assert.ts";
import type { Clock } from "../base/clock.ts";
import type { WorkerId } from "../base/ids.ts";
import type { Group, RolloutRequest } from "../request/buffer.ts";
import { Lookahead } from "../schedule/lookahead.ts";
import { Paces } from "../schedule/pace.ts";
import { inBlocks, promptTokens, type Slot } from "../schedule/placement.ts";
import type { EngineWorker, WorkerStats } from "./worker.ts";

type Made = Pick<
  WorkerStats,
  "outputTokens" | "acceptedTokens" | "draftedTokens" | "prefillTokens"
>;

interface Account {
  readonly worker: EngineWorker;
  readonly slot: { -readonly [Key in keyof Slot]: Slot[Key] };
  /** false: its connection is lost, and may come back. */
  isReachable: boolean;
  /** false: it has no slots; what it runs stays there. */
  isOpen: boolean;
  /** The suspect that was dispatched there last. */
  suspect: RolloutRequest | null;
  inFlight: number;
  kvTokens: number;
  readonly lookahead: Lookahead;
  /** Running requests in order of dispatch. */
  readonly running: Set<RolloutRequest>;
  /** State of the current span: last update, time in which requests ran, and that time multiplied by their number. */
  updatedMs: number;
  busyMs: number;
  requestMs: number;
  /** Requests with KV there by group, and tokens of their prompts that are booked for each of them and held once. */
  readonly residents: Map<Group, number>;
  sharedTokens: number;
  /** Sessions with KV there. */
  sessions: number;
  /** The worker's counts when the span began; null: it has said nothing yet. */
  made: Made | null;
  /** Part of `kvTokens` that will be free soon: KV in export, and KV of requests whose chunk was ordered to end. */
  leavingTokens: number;
}

const NOTHING_HELD = { inFlight: 0, kvTokens: 0, sharedTokens: 0, sessions: 0, leavingTokens: 0 };
/** Shortest span that is measured: counters of servers are polled once a second. */
const SPAN_MS = 3_000;
const SPAN_STEPS = 64;

export class Ledger {
  readonly paces = new Paces();
  readonly #clock: Clock;
  readonly #accounts = new Map<WorkerId, Account>();
  /** KV tokens by worker, kept for workers that are gone and may come back. */
  readonly #kvTokens = new Map<WorkerId, number>();
  /** The largest KV budget of the workers that are there, or were and may come back. */
  kvTokensMax = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(worker: EngineWorker): void {
    assert(!this.#accounts.has(worker.workerId), `worker ${worker.workerId} is there already`);
    const residents = new Map<Group, number>();
    const running = new Set<RolloutRequest>();
    this.#accounts.set(worker.workerId, {
      worker,
      slot: slotOf(worker, { residents, running }),
      isReachable: true,
      isOpen: true,
      suspect: null,
      ...NOTHING_HELD,
      lookahead: new Lookahead(worker.capacity.kvTokens),
      running,
      updatedMs: this.#clock.nowMs(),
      busyMs: 0,
      requestMs: 0,
      made: null,
      residents,
    });
    this.#kvTokens.set(worker.workerId, worker.capacity.kvTokens);
    this.kvTokensMax = Math.max(0, ...this.#kvTokens.values());
    this.#repace();
  }

  /** null: the worker has failed and was removed. */
  worker(workerId: WorkerId): EngineWorker | null {
    return this.#accounts.get(workerId)?.worker ?? null;
  }

  workers(): EngineWorker[] {
    return [...this.#accounts.values()].map((account) => account.worker);
  }

  isReachable(workerId: WorkerId): boolean {
    return this.#accounts.get(workerId)?.isReachable ?? false;
  }

  setReachable(workerId: WorkerId, isReachable: boolean, isOpen: boolean): void {
    const account = this.#accounts.get(workerId);
    if (account !== undefined) Object.assign(account, { isReachable, isOpen });
  }

  remove(workerId: WorkerId): void {
    this.#accounts.delete(workerId);
    this.paces.forget(workerId);
    this.#repace();
  }

  /** The worker was removed and does not come back: no request waits for its KV budget. */
  forget(workerId: WorkerId): void {
    this.#kvTokens.delete(workerId);
    this.kvTokensMax = Math.max(0, ...this.#kvTokens.values());
  }

  /** Adds to what the worker holds; negative amounts give back. A removed worker is ignored. */
  book(workerId: WorkerId, amounts: { inFlight: number; kvTokens: number }): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    account.inFlight += amounts.inFlight;
    account.kvTokens += amounts.kvTokens;
    assert(account.inFlight >= 0, "a worker gives back no more requests than it had");
    assert(account.kvTokens >= 0, "a worker gives back no more KV than it had");
  }

  /** One request more, or fewer, has KV on the worker. */
  resides(workerId: WorkerId, { group, spec }: RolloutRequest, change: 1 | -1): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    if (spec.keepsKv === true) account.sessions = Math.max(0, account.sessions + change);
    if (account.worker.capacity.sharesPrompts !== true) return;
    const { residents, slot } = account;
    const count = (residents.get(group) ?? 0) + change;
    if (count < 0) return;
    const tokens = promptTokens(group, slot.blockTokens);
    if (Math.max(count, count - change) > 1) account.sharedTokens += change * tokens;
    if (count === 0) residents.delete(group);
    else residents.set(group, count);
  }

  begun(workerId: WorkerId, request: RolloutRequest): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    this.#updateSpan(account);
    account.running.add(request);
  }

  ended(workerId: WorkerId, request: RolloutRequest): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    this.#updateSpan(account);
    account.running.delete(request);
  }

  /** Adds KV tokens that are being exported from the worker; negative: their export has ended. */
  leaving(workerId: WorkerId, kvTokens: number): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    account.leavingTokens += kvTokens;
    assert(account.leavingTokens >= 0, "only KV that was leaving has left");
  }

  /** A running request has `context` tokens now, and `held` KV tokens. Returns those that it holds from now on. */
  reserve(workerId: WorkerId, context: number, held: number): number {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return Math.max(context, held);
    const { slot, lookahead } = account;
    const wanted = Math.max(held, inBlocks(context + lookahead.tokens, slot.blockTokens));
    account.kvTokens += wanted - held;
    return wanted;
  }

  /** Running requests of the worker, in order of dispatch. */
  running(workerId: WorkerId): ReadonlySet<RolloutRequest> {
    return this.#accounts.get(workerId)?.running ?? new Set();
  }

  generated(workerId: WorkerId, tokens: number): void {
    this.#accounts.get(workerId)?.lookahead.generated(tokens);
  }

  /** `total`: requests that the worker's engine has preempted by itself. */
  preempted(workerId: WorkerId, total: number): void {
    this.#accounts.get(workerId)?.lookahead.preempted(total);
  }

  counted(workerId: WorkerId, made: Made): void {
    const account = this.#accounts.get(workerId);
    if (account === undefined) return;
    this.#updateSpan(account);
    const { busyMs, requestMs, made: before } = account;
    // Counts that are lower than before are of another process.
    if (before !== null && made.outputTokens >= before.outputTokens) {
      if (busyMs < SPAN_MS) return;
      const accepted = made.acceptedTokens - before.acceptedTokens;
      const steps = made.outputTokens - before.outputTokens - accepted;
      if (steps < SPAN_STEPS) return;
      const drafted = made.draftedTokens - before.draftedTokens;
      const prefilled = made.prefillTokens - before.prefillTokens;
      const span = { busyMs, requestMs, steps, drafted, prefilled };
      const isLearnt = this.paces.observe(workerId, span);
      if (isLearnt) this.#repace();
      else account.slot.baseRequests = this.paces.baseRequests(workerId);
    }
    account.made = made;
    account.busyMs = 0;
    account.requestMs = 0;
  }

  #repace(): void {
    for (const { slot } of this.#accounts.values()) {
      slot.rowMs = this.paces.rowMs(slot.workerId);
      slot.pace = this.paces.of(slot.workerId);
      slot.baseRequests = this.paces.baseRequests(slot.workerId);
    }
  }

  #updateSpan(account: Account): void {
    const { running, updatedMs } = account;
    account.updatedMs = this.#clock.nowMs();
    const ms = account.updatedMs - updatedMs;
    if (running.size > 0) account.busyMs += ms;
    account.requestMs += ms * running.size;
  }

  isBusy(workerId: WorkerId): boolean {
    return (this.#accounts.get(workerId)?.inFlight ?? 0) > 0;
  }

  /** The request is dispatched to the worker, and workers have died with it. */
  suspect(workerId: WorkerId, request: RolloutRequest): void {
    const account = this.#accounts.get(workerId);
    if (account !== undefined) account.suspect = request;
  }

  get inFlight(): number {
    return this.#accounts.values().reduce((total, { inFlight }) => total + inFlight, 0);
  }

  /** Every worker dropped all that it held. */
  clear(): void {
    for (const account of this.#accounts.values()) {
      Object.assign(account, NOTHING_HELD);
      account.residents.clear();
      this.#updateSpan(account);
      account.running.clear();
    }
  }

  /** Workers that take requests. Each call brings the slots of the one before up to date. */
  slots(): Slot[] {
    const slots: Slot[] = [];
    for (const account of this.#accounts.values()) {
      const { slot, suspect } = account;
      if (!account.isOpen) continue;
      slot.inFlight = account.inFlight;
      slot.sessions = account.sessions;
      slot.kvTokensFree = slot.kvTokens - account.kvTokens + account.sharedTokens;
      slot.aheadTokens = account.lookahead.tokens;
      slot.kvTokensLeaving = account.leavingTokens;
      slot.hasSuspect = suspect !== null && isOnProbation(suspect, slot.workerId);
      slot.isReserved = false;
      slots.push(slot);
    }
    return slots;
  }
}

function slotOf(
  { workerId, capacity }: EngineWorker,
  held: Pick<Slot, "residents" | "running">,
): Slot {
  const { slots, ahead = 0, kvTokens, kvBlockTokens = 1, kvBytesPerToken } = capacity;
  const { sharesKv = kvBytesPerToken > 0 } = capacity;
  return {
    workerId,
    slots: slots + ahead,
    ahead,
    kvTokens,
    blockTokens: kvBlockTokens,
    sharesKv,
    ...held,
    sessions: 0,
    growthTokens: 0,
    inFlight: 0,
    hasSuspect: false,
    pace: 1,
    rowMs: Number.NaN,
    baseRequests: 0,
    kvTokensFree: kvTokens,
    aheadTokens: 0,
    kvTokensLeaving: 0,
    isReserved: false,
  };
}

function isOnProbation(request: RolloutRequest, workerId: WorkerId): boolean {
  if (request.residentOn !== workerId || request.attempts?.isOnProbation !== true) return false;
  return request.status === "running" || request.status === "moving";
}
