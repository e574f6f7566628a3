// Decides which request runs where, for how many tokens. It owns no sockets, no timers and no KV:
// `schedule` takes what is known now and returns commands. The rollout executes them against
// workers, a simulator against models.
//
// Requests are served in the order of the policy, but sessions that have begun go before those that have not: each more
// that is begun takes KV that the others come back to. Three kinds do not hold up those behind them: a large one that must
// wait for room (it is passed over, for a while), one that is too large for every worker that is there (it is
// stranded), and one with which a worker has died (a suspect: each runs alone among its kind).

import { assert, present } from "../base/assert.ts";
import type { WorkerId } from "../base/ids.ts";
import { SessionOutlook } from "../context/session-outlook.ts";
import {
  contextTokens,
  type Group,
  isFirstTurn,
  isLaterTurn,
  isSuspect,
  type Request,
} from "../request/buffer.ts";
import type { ChunkLength } from "./chunk-length.ts";
import {
  hasRoom,
  isOpenTo,
  LOAD_COST,
  place,
  reservationOf,
  type Slot,
  spareTokens,
  tokensNeeded,
} from "./placement.ts";
import { PRIORITY_STRIDE, type SchedulePolicy } from "./policy.ts";
import { Returns } from "./returns.ts";
import { Rooms } from "./rooms.ts";

export type ScheduleCommand = ExecutableCommand | RejectCommand;

/** Commands that are carried out on workers. */
export type ExecutableCommand =
  /**
   * Run the next `chunkTokens` tokens of the request on the worker; its KV follows it. `reservedTokens`: KV that it is
   * accounted for when it begins, context included.
   */
  | {
      kind: "dispatch";
      request: Request;
      workerId: WorkerId;
      chunkTokens: number;
      reservedTokens: number;
    }
  /** The worker is about to run short of KV: end the request's chunk now, and take its KV into the pool. */
  | { kind: "preempt"; request: Request; workerId: WorkerId }
  /** The request waits and others want its room: take its KV from where it is parked into the pool. */
  | { kind: "offload"; request: Request; workerId: WorkerId };

/** No worker can hold the request, nor could one that may come back. */
export interface RejectCommand {
  readonly kind: "reject";
  readonly request: Request;
  readonly kvTokensNeeded: number;
}

/**
 * divided: chunks, placed one by one under admission.
 * pinned: whole requests, each to one of the workers that can hold it; the engine queues and preempts. Default: a whole
 * group to the same, round robin (as veRL).
 */
export type DispatchMode =
  | { kind: "divided"; chunks: ChunkLength }
  | { kind: "pinned"; pin?: (request: Request, able: readonly Slot[]) => Slot | undefined };

/** Maximum of requests passed over in one turn: each costs two heap operations and a check of every worker. */
export const PASSED_MAX = 32;
/**
 * A request is large for a worker if it needs more than this part of its whole budget. Room for a smaller one comes
 * free all the time: passing it over would only change the policy's order.
 */
const LARGE_PART = 1 / 8;
/**
 * Dispatches that may go ahead of a request that was passed over, as a multiple of all slots and at least. After that,
 * a worker is kept free for the request.
 */
const ROUNDS_AHEAD = 4;
export const DISPATCHES_AHEAD_MIN = 64;

/** A probe's session has more to do than any other. */
const PROBE_TOKENS = 2 ** 31;

/** State of one call of `schedule`. */
interface Turn {
  readonly slots: readonly Slot[];
  readonly commands: ScheduleCommand[];
  /** The largest budget of a worker that is there; and of those that may come back. */
  readonly kvTokens: number;
  readonly kvTokensMax: number;
  /** The largest block of KV of a worker that is there. */
  readonly blockTokens: number;
  /** A request waits for room. */
  isBlocked: boolean;
}

export class Scheduler {
  readonly #policy: SchedulePolicy;
  readonly #mode: DispatchMode;
  readonly #sessions: SessionOutlook;
  /** Waiting requests whose KV still lies on a worker. */
  readonly #parked = new Set<Request>();
  /** Finished requests whose KV stays for the next turn of their sessions; the one finished longest ago comes first. */
  readonly #retained = new Set<Request>();
  /** Waiting turns of sessions that have begun, in order of arrival. */
  readonly #turns = new Set<Request>();
  readonly returns = new Returns();
  /** Waiting requests that are not the policy's, in order of arrival. */
  readonly #suspects = new Set<Request>();
  readonly #stranded = new Set<Request>();
  /** KV budgets in the turn that last checked the stranded requests. */
  #strandedAt = { kvTokens: 0, kvTokensMax: 0 };
  /** Requests that were passed over: the count of dispatches at the first time. */
  readonly #passedAt = new Map<Request, number>();
  #dispatches = 0;
  #reservation: { request: Request; workerId: WorkerId } | null = null;
  /** true: no request that waits had room when `#rooms` was taken, and none has come or gone since. */
  #isFull = false;
  readonly #rooms = new Rooms();

  constructor(policy: SchedulePolicy, mode: DispatchMode, sessions = new SessionOutlook()) {
    this.#policy = policy;
    this.#mode = mode;
    this.#sessions = sessions;
  }

  /** The request waits: new, at the end of a chunk, or after its worker failed. */
  enqueue(request: Request): void {
    assert(request.status === "waiting", "only a waiting request is scheduled");
    this.#isFull = false;
    if (isSuspect(request)) this.#suspects.add(request);
    else {
      this.#policy.add(request);
      const hasBegun = request.spec.keepsKv === true && request.response.length > 0;
      if (this.#mode.kind === "divided" && (hasBegun || isLaterTurn(request))) {
        this.#turns.add(request);
      }
    }
    if (request.residentOn !== null) this.#parked.add(request);
  }

  /** The request is finished, and its KV stays parked: it makes way before that of requests that wait. */
  retained(request: Request): void {
    this.#retained.add(request);
  }

  /** The length context of the group has changed. */
  refresh(group: Group): void {
    this.#policy.refresh(group);
  }

  /** The group is done with. */
  forget(group: Group): void {
    this.#policy.forget(group);
  }

  /** The request's parked KV is gone from its worker (exported, evicted, or the worker failed). */
  unparked(request: Request): void {
    this.#parked.delete(request);
    this.#retained.delete(request);
  }

  /** The request was given up. */
  remove(request: Request): void {
    this.#policy.remove(request);
    this.#leave(request);
  }

  isUrgent(request: Request): boolean {
    return this.#policy.isUrgent(request);
  }

  /**
   * Commands for now. Consumes `slots`. The caller must carry out every command. `kvTokensMax`: the largest budget
   * of all workers that are there or may come back. `nowMs`: of the clock that finished requests have their times of.
   */
  schedule(slots: Slot[], kvTokensMax = 0, nowMs = 0): ScheduleCommand[] {
    if (slots.length === 0) return [];
    const kvTokens = slots.reduce((most, slot) => Math.max(most, slot.kvTokens), 0);
    const turn: Turn = {
      slots,
      commands: [],
      kvTokens,
      kvTokensMax: Math.max(kvTokens, kvTokensMax),
      blockTokens: slots.reduce((most, slot) => Math.max(most, slot.blockTokens), 1),
      isBlocked: false,
    };
    this.#policy.begin?.(slots);
    this.#expectGrowth(slots);
    this.#recall(turn);
    this.#serveReservation(turn);
    if (this.#suspects.size > 0) this.#serveSuspects(turn);
    if (this.#turns.size > 0) this.#serveTurns(turn);
    this.#serveInOrder(turn);
    if (turn.isBlocked) this.#makeRoom(turn, nowMs);
    if (this.#mode.kind === "divided") this.#preempt(turn);
    return turn.commands;
  }

  /** Where running requests have grown into half of their lookahead, paused sessions make way, then chunks end early. */
  #preempt({ slots, commands }: Turn): void {
    for (const slot of slots) {
      let short = -spareTokens(slot);
      if (short <= 0) continue;
      const { workerId } = slot;
      for (const request of this.#retained) {
        if (short <= 0) break;
        if (request.residentOn !== workerId) continue;
        this.#retained.delete(request);
        commands.push({ kind: "offload", request, workerId });
        short -= request.residentTokens;
      }
      if (short <= 0) continue;
      for (const request of victims(slot)) {
        commands.push({ kind: "preempt", request, workerId });
        short -= request.residentTokens - slot.aheadTokens / 2;
        if (short <= 0) break;
      }
    }
  }

  /** Turns of sessions that have begun; one that has no room now is left to the policy. */
  #serveTurns(turn: Turn): void {
    let passed = 0;
    for (const request of this.#turnsInOrder()) {
      if (passed >= PASSED_MAX) return;
      const chunkTokens = this.#chunkOf(request, turn);
      const slot = place(request, turn.slots, chunkTokens);
      if (slot === null) {
        passed += 1;
        continue;
      }
      this.#policy.remove(request);
      this.#dispatch(request, slot, chunkTokens, turn);
    }
  }

  /** Room that the sessions of each worker are expected to need beyond what they have. */
  #expectGrowth(slots: readonly Slot[]): void {
    for (const slot of slots) {
      slot.growthTokens = 0;
      if (slot.sessions === 0) continue;
      for (const { spec, group } of slot.running)
        if (spec.keepsKv === true) this.#grow(slot, group);
    }
    if (this.#retained.size + this.#turns.size === 0) return;
    const slotOf = new Map(slots.map((slot) => [slot.workerId, slot]));
    for (const there of [this.#retained, this.#turns]) {
      for (const { residentOn, group } of there) {
        const slot = residentOn === null ? undefined : slotOf.get(residentOn);
        if (slot !== undefined) this.#grow(slot, group);
      }
    }
  }

  #grow(slot: Slot, group: Group): void {
    const growth = this.#sessions.growthTokens(group) * roomCost(slot);
    slot.growthTokens = (slot.growthTokens ?? 0) + growth;
  }

  /** Turns of sessions that have begun: by the clients' priority, a group's probe first, then those with most to do yet. */
  #turnsInOrder(): Request[] {
    const keyed = Array.from(this.#turns, (request) => {
      const left = this.isUrgent(request) ? PROBE_TOKENS : this.#sessions.tokensLeft(request);
      return { request, key: request.priority * PRIORITY_STRIDE - left };
    });
    return keyed.sort((a, b) => a.key - b.key).map(({ request }) => request);
  }

  #serveInOrder(turn: Turn): void {
    // While a request runs, the next look is soon.
    const runs = turn.slots.some(({ inFlight }) => inFlight > 0);
    if (this.#isFull && runs && !this.#rooms.haveGrown(turn.slots)) {
      turn.isBlocked = true;
      return;
    }
    const passed: Request[] = [];
    for (let request = this.#policy.peek(); request !== null; request = this.#policy.peek()) {
      const chunkTokens = this.#chunkOf(request, turn);
      if (this.#strand(request, chunkTokens, turn)) {
        this.#policy.remove(request);
        continue;
      }
      const slot = this.#placeOf(request, turn.slots, chunkTokens);
      if (slot !== null) {
        this.#policy.take(request);
        this.#dispatch(request, slot, chunkTokens, turn);
        continue;
      }
      turn.isBlocked = true;
      if (passed.length >= PASSED_MAX || !this.#mayPass(request, chunkTokens, turn.slots)) break;
      this.#policy.remove(request);
      passed.push(request);
    }
    for (const request of passed) {
      this.#policy.add(request);
      this.#passedOver(request, turn);
    }
    this.#isFull = turn.isBlocked;
    if (turn.isBlocked) this.#rooms.remember(turn.slots);
  }

  /** Starts at most one suspect on a worker, and on half of the workers at most: new requests need the others. */
  #serveSuspects(turn: Turn): void {
    const { slots } = turn;
    const most = Math.max(1, Math.floor(slots.length / 2));
    let count = slots.reduce((sum, slot) => sum + (slot.hasSuspect ? 1 : 0), 0);
    let looked = 0;
    for (const request of this.#suspects) {
      if (count >= most || looked >= PASSED_MAX) return;
      looked += 1;
      const chunkTokens = this.#chunkOf(request, turn);
      if (this.#strand(request, chunkTokens, turn)) {
        this.#suspects.delete(request);
        continue;
      }
      const slot = this.#placeOf(request, slots, chunkTokens);
      if (slot === null) {
        turn.isBlocked = true;
        this.#passedOver(request, turn);
        continue;
      }
      this.#suspects.delete(request);
      slot.hasSuspect = true;
      count += 1;
      this.#dispatch(request, slot, chunkTokens, turn);
    }
  }

  #chunkOf(request: Request, { kvTokens, blockTokens }: Turn): number {
    const left = request.spec.sampling.tokensMax - request.response.length;
    assert(left >= 1, "a waiting request has tokens left");
    if (this.#mode.kind === "pinned" || !request.spec.divisible) return left;
    return Math.min(
      left,
      this.#mode.chunks.tokens(contextTokens(request), { kvTokens, blockTokens }),
    );
  }

  #placeOf(request: Request, slots: readonly Slot[], chunkTokens: number): Slot | null {
    if (this.#mode.kind === "divided") return place(request, slots, chunkTokens);
    const needed = contextTokens(request) + chunkTokens;
    const able = slots.filter(({ kvTokens }) => needed <= kvTokens);
    const { pin = ({ group }: Request) => able[group.index % able.length] } = this.#mode;
    const slot = present(pin(request, able), "a worker can hold it");
    if (!isOpenTo(request, slot) || slot.hasSuspect) return null;
    // A suspect must not wait in the engine's queue, nor be preempted: it would be blamed for what others did.
    return isSuspect(request) && !hasRoom(request, slot, chunkTokens) ? null : slot;
  }

  #dispatch(request: Request, slot: Slot, chunkTokens: number, { commands }: Turn): void {
    this.#leave(request);
    this.#dispatches += 1;
    const reservedTokens = reservationOf(request, slot, chunkTokens);
    slot.kvTokensFree -= tokensNeeded(request, slot, chunkTokens);
    slot.inFlight += 1;
    if (isFirstTurn(request)) this.#grow(slot, request.group);
    const { workerId } = slot;
    commands.push({ kind: "dispatch", request, workerId, chunkTokens, reservedTokens });
  }

  /** The request waits no more. */
  #leave(request: Request): void {
    this.#isFull = false;
    this.#parked.delete(request);
    this.#turns.delete(request);
    this.#suspects.delete(request);
    this.#stranded.delete(request);
    this.#passedAt.delete(request);
    if (this.#reservation?.request === request) this.#reservation = null;
  }

  /** true: no worker that is there can ever hold it. It waits for one, or is rejected. */
  #strand(request: Request, chunkTokens: number, turn: Turn): boolean {
    const kvTokensNeeded = contextTokens(request) + chunkTokens;
    if (kvTokensNeeded <= turn.kvTokens) return false;
    if (kvTokensNeeded <= turn.kvTokensMax) this.#stranded.add(request);
    else turn.commands.push({ kind: "reject", request, kvTokensNeeded });
    return true;
  }

  /** Reconsiders stranded requests when workers have come or gone. */
  #recall({ kvTokens, kvTokensMax }: Turn): void {
    const at = this.#strandedAt;
    if (at.kvTokens === kvTokens && at.kvTokensMax === kvTokensMax) return;
    this.#strandedAt = { kvTokens, kvTokensMax };
    const stranded = [...this.#stranded];
    this.#stranded.clear();
    for (const request of stranded) this.enqueue(request);
  }

  /**
   * Counts dispatches that went ahead of the request. After a limit, a worker that can hold the request takes no other.
   */
  #passedOver(request: Request, turn: Turn): void {
    const { slots } = turn;
    const since = this.#passedAt.get(request);
    if (since === undefined) {
      this.#passedAt.set(request, this.#dispatches);
      return;
    }
    if (this.#reservation !== null) return;
    const rounds = ROUNDS_AHEAD * slots.reduce((sum, slot) => sum + slot.slots, 0);
    if (this.#dispatches - since < Math.max(DISPATCHES_AHEAD_MIN, rounds)) return;
    const needed = contextTokens(request) + this.#chunkOf(request, turn);
    let best: Slot | null = null;
    for (const slot of slots) {
      if (slot.kvTokens < needed) continue;
      if (best === null || slot.kvTokensFree > best.kvTokensFree) best = slot;
    }
    if (best !== null) this.#reservation = { request, workerId: best.workerId };
  }

  /** The worker that is kept free runs the request for which it is as soon as there is room. */
  #serveReservation(turn: Turn): void {
    const { request, workerId } = this.#reservation ?? {};
    if (request === undefined) return;
    const slot = turn.slots.find((one) => one.workerId === workerId);
    const chunkTokens = this.#chunkOf(request, turn);
    if (slot === undefined || slot.kvTokens < contextTokens(request) + chunkTokens) {
      this.#reservation = null;
      return;
    }
    if (isOpenTo(request, slot) && hasRoom(request, slot, chunkTokens)) {
      this.#policy.remove(request);
      if (isSuspect(request)) slot.hasSuspect = true;
      this.#dispatch(request, slot, chunkTokens, turn);
      return;
    }
    slot.isReserved = true;
    turn.isBlocked = true;
  }

  /** Offloads KV of requests that do not run, because a request waits for room. */
  #makeRoom(turn: Turn, nowMs: number): void {
    // KV of paused sessions is offloaded before KV of waiting requests.
    const keepers = new Set<WorkerId>();
    for (const leaving of [this.#retained, this.#parked]) {
      for (const request of leaving) {
        const workerId = present(request.residentOn, "a parked request is resident");
        const isRetained = leaving === this.#retained;
        if (isRetained) keepers.add(workerId);
        const stays = isRetained ? this.#staysFor(request, turn, nowMs) : keepers.has(workerId);
        if (stays) continue;
        leaving.delete(request);
        turn.commands.push({ kind: "offload", request, workerId });
      }
    }
  }

  /** Whether the session is expected back so soon that others wait. Nobody waits for a worker that runs nothing. */
  #staysFor({ residentOn, response, tool }: Request, { slots }: Turn, nowMs: number): boolean {
    const slot = slots.find(({ workerId }) => workerId === residentOn);
    if (slot === undefined || slot.inFlight === 0) return false;
    const { recomputeMs } = slot;
    const keepMs = this.returns.keepMs({ recomputeMs, cost: roomCost(slot), tool });
    return nowMs - (response.finishedMs ?? 0) < keepMs;
  }

  /** Whether requests behind one that has no room are served before it. */
  #mayPass(request: Request, chunkTokens: number, slots: readonly Slot[]): boolean {
    // Its own worker keeps it out; those behind it have other ones.
    if (this.#mode.kind === "pinned") return true;
    const needed = contextTokens(request) + chunkTokens;
    return slots.some((slot) => {
      if (slot.inFlight >= slot.slots) return false;
      if (slot.isReserved || slot.hasSuspect || needed > slot.kvTokens) return true;
      return this.#policy.isStrict !== true && needed > LARGE_PART * slot.kvTokens;
    });
  }
}

/** Cost of getting KV back that made way, as a part of computing it. */
function roomCost({ sharesKv }: Slot): number {
  return sharesKv ? LOAD_COST : 1;
}

/** A chunk that ends early should free this part of its worker's KV: then the next one does not have to end soon. */
const ROOM_PART = 1 / 16;

/**
 * Requests whose chunks may end early, in the order in which they do: of those that free enough, the one that costs
 * least to continue; then the others, the largest first; of equal ones that which was dispatched last. Not the one that
 * was dispatched first: some request always goes on.
 */
function victims({ running, kvTokens, blockTokens }: Slot): Request[] {
  const [, ...rest] = running;
  const enough = ROOM_PART * kvTokens;
  // What is in a block that is not full is computed again; the last token has no KV yet.
  const costOf = (request: Request): number =>
    ((contextTokens(request) - 1) % blockTokens) + LOAD_COST * request.residentTokens;
  return rest
    .reverse()
    .filter((request) => request.spec.divisible && !isSuspect(request))
    .map((request) => ({ request, tokens: request.residentTokens, cost: costOf(request) }))
    .sort((a, b) => {
      if (a.tokens >= enough !== b.tokens >= enough) return a.tokens >= enough ? -1 : 1;
      return a.tokens >= enough ? a.cost - b.cost : b.tokens - a.tokens;
    })
    .map(({ request }) => request);
}
