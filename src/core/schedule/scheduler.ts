// Decides which request runs where, for how many tokens. It owns no sockets, no timers and no KV:
// `schedule` takes what is known now and returns commands. The rollout executes them against
// workers, a simulator against models.
//
// Requests are served in the order of the policy, but sessions that have begun go before those that have not (each more
// that is begun takes KV that the others come back to), and what has waited beyond the bound goes before both. Three kinds
// do not hold up those behind them: a large one that must wait for room (it is passed over, for a while), one that is too
// large for every worker that is there (it is stranded), and one with which a worker has died (a suspect: each runs alone
// among its kind).
// Where no length of chunks is set, one that begins while nobody waits goes on until somebody does.

import { assert, present } from "../base/assert.ts";
import type { WorkerId } from "../base/ids.ts";
import { SessionOutlook } from "../context/session-outlook.ts";
import {
  contextTokens,
  type Group,
  isFirstTurn,
  isSuspect,
  type RolloutRequest,
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
import type { SchedulePolicy } from "./policy.ts";
import { Reservation } from "./reservation.ts";
import { Rooms } from "./rooms.ts";
import { Sessions } from "./sessions.ts";

export type ScheduleCommand = ExecutableCommand | RejectCommand;

/** Commands that are carried out on workers. */
export type ExecutableCommand =
  /**
   * Run the next `chunkTokens` tokens of the request on the worker; its KV follows it. `reservedTokens`: KV that it is
   * accounted for when it begins, context included.
   */
  | {
      kind: "dispatch";
      request: RolloutRequest;
      workerId: WorkerId;
      chunkTokens: number;
      reservedTokens: number;
    }
  /** The worker is about to run short of KV: end the request's chunk now, and take its KV into the pool. */
  | { kind: "preempt"; request: RolloutRequest; workerId: WorkerId }
  /** The request's chunk is to end now; it waits again, and its KV stays where it is. */
  | { kind: "end"; request: RolloutRequest; workerId: WorkerId }
  /** The request waits and others want its room: take its KV from where it is parked into the pool. */
  | { kind: "offload"; request: RolloutRequest; workerId: WorkerId };

/** No worker can hold the request, nor could one that may come back. */
export interface RejectCommand {
  readonly kind: "reject";
  readonly request: RolloutRequest;
  readonly kvTokensNeeded: number;
}

/**
 * divided: chunks, placed one by one under admission.
 * pinned: whole requests, each to one of the workers that can hold it; the engine queues and preempts. Default: a whole
 * group to the same, round robin (as veRL).
 */
export type DispatchMode =
  | { kind: "divided"; chunks: ChunkLength }
  | { kind: "pinned"; pin?: (request: RolloutRequest, able: readonly Slot[]) => Slot | undefined };

/** Maximum of requests passed over in one turn: each costs two heap operations and a check of every worker. */
export const PASSED_MAX = 32;
/**
 * A request is large for a worker if it needs more than this part of its whole budget. Room for a smaller one comes
 * free all the time: passing it over would only change the policy's order.
 */
const LARGE_PART = 1 / 8;

/**
 * Chunks without an end are over where a worker has one request more than this many times another's: to move costs a block
 * of KV at least, and a turn of a session ends soon by itself.
 */
const UNEVEN_FACTOR = 1.5;

/** State of one call of `schedule`. */
interface Turn {
  readonly slots: readonly Slot[];
  readonly commands: ScheduleCommand[];
  /** The largest budget of a worker that is there; and of those that may come back. */
  readonly kvTokens: number;
  readonly kvTokensMax: number;
  /** The largest block of KV of a worker that is there. */
  readonly blockTokens: number;
  /** Some of them can load KV of others. */
  readonly sharesKv: boolean;
  /** A request waits for room. */
  isBlocked: boolean;
}

export class Scheduler {
  readonly #policy: SchedulePolicy;
  readonly #mode: DispatchMode;
  /** Waiting requests whose KV still lies on a worker. */
  readonly #parked = new Set<RolloutRequest>();
  readonly sessions: Sessions;
  /** Waiting suspects, in order of arrival: in quarantine, as no worker runs two, and half of the workers run none. */
  readonly #suspects = new Set<RolloutRequest>();
  /** Requests that are too large for every worker that is there, and not for one that may come back. */
  readonly stranded = new Set<RolloutRequest>();
  /** KV budgets in the turn that last checked the stranded requests. */
  #strandedAt = { kvTokens: 0, kvTokensMax: 0 };
  readonly #reservation = new Reservation();
  readonly #rooms = new Rooms();
  /** Requests whose chunks have no end of their own, because nobody waited when they began. */
  readonly #endless = new Set<RolloutRequest>();

  constructor(policy: SchedulePolicy, mode: DispatchMode, sessions = new SessionOutlook()) {
    this.#policy = policy;
    this.#mode = mode;
    this.sessions = new Sessions(sessions);
  }

  /** The request waits: new, at the end of a chunk, or after its worker failed. */
  enqueue(request: RolloutRequest): void {
    assert(request.status === "waiting", "only a waiting request is scheduled");
    this.#rooms.changed();
    this.#endless.delete(request);
    if (isSuspect(request)) this.#suspects.add(request);
    else {
      this.#policy.add(request);
      if (this.#mode.kind === "divided") this.sessions.enqueue(request);
    }
    if (request.residentOn !== null) this.#parked.add(request);
  }

  /** The request is finished, and its KV stays parked: it makes way before that of requests that wait. */
  retained(request: RolloutRequest): void {
    this.#endless.delete(request);
    this.sessions.paused.add(request);
  }

  /** The length context of the group has changed. */
  refresh(group: Group): void {
    this.#policy.refresh?.(group);
  }

  /** The group is done with. */
  forget(group: Group): void {
    for (const request of group.requests) this.#endless.delete(request);
    this.#policy.forget?.(group);
  }

  /** The request's parked KV is gone from its worker (exported, evicted, or the worker failed). */
  unparked(request: RolloutRequest): void {
    this.#parked.delete(request);
    this.sessions.paused.delete(request);
  }

  /** The request was given up. */
  remove(request: RolloutRequest): void {
    this.#policy.remove(request);
    this.#leave(request);
  }

  isUrgent(request: RolloutRequest): boolean {
    return this.#policy.isUrgent?.(request) ?? false;
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
      sharesKv: slots.some((slot) => slot.sharesKv),
      isBlocked: false,
    };
    this.#policy.begin?.(slots);
    this.#recall(turn);
    // Most turns are for tokens of requests that run.
    const isWaiting = this.#rooms.wereFull || this.#policy.peek() !== null;
    if (isWaiting || this.#suspects.size > 0) this.#serve(turn, nowMs);
    if (this.#mode.kind === "divided") {
      if (!this.#mode.chunks.isFixed) this.#openEnds(turn);
      this.#preempt(turn);
      if (this.#endless.size > 0) this.#endChunks(turn, this.#mode.chunks);
    }
    return turn.commands;
  }

  #serve(turn: Turn, nowMs: number): void {
    this.sessions.expectGrowth(turn.slots);
    this.#serveReservation(turn);
    if (this.#suspects.size > 0) this.#serveSuspects(turn);
    this.#serveInOrder(turn);
    if (turn.isBlocked) this.#makeRoom(turn, nowMs);
  }

  /** Chunks that begin while nobody waits have no end of their own. */
  #openEnds({ commands, slots, isBlocked }: Turn): void {
    if (isBlocked || this.#policy.peek() !== null || this.#suspects.size > 0) return;
    for (const command of commands) {
      if (command.kind !== "dispatch") continue;
      const { request, workerId } = command;
      if (!request.spec.divisible || isSuspect(request)) continue;
      const left = request.spec.sampling.tokensMax - request.response.length;
      const kvTokens = slots.find((slot) => slot.workerId === workerId)?.kvTokens ?? 0;
      command.chunkTokens = Math.min(left, kvTokens - contextTokens(request));
      this.#endless.add(request);
    }
  }

  /** Chunks without an end are over once they are as long as others, and somebody waits or another worker has less to do. */
  #endChunks(turn: Turn, chunks: ChunkLength): void {
    const { slots, commands } = turn;
    // Where KV makes way, there is room soon.
    const isBlocked = turn.isBlocked && !commands.some(({ kind }) => kind === "offload");
    const busiest = slots.reduce((most, slot) => (slot.inFlight > most.inFlight ? slot : most));
    const isIdle = (slot: Slot) => busiest.inFlight > 1 + UNEVEN_FACTOR * slot.inFlight;
    if (!isBlocked && !slots.some(isIdle)) return;
    for (const request of this.#endless) {
      const slot = slots.find(({ workerId }) => workerId === request.workerId);
      if (request.status !== "running" || slot === undefined) continue;
      const { response, spec } = request;
      // It has all its tokens, and its engine is about to say so.
      if (response.length === spec.sampling.tokensMax) continue;
      const made = response.length - (response.lastChunk?.offset ?? 0);
      const chunkTokens = chunks.tokens(contextTokens(request) - made, turn);
      if (made < chunkTokens || (!isBlocked && slot !== busiest)) continue;
      // If it stays where it is, the next one is looked at in the next turn.
      this.#endless.delete(request);
      slot.inFlight -= 1;
      const isMoving = isBlocked || place(request, slots, this.#chunkOf(request, turn)) !== slot;
      slot.inFlight += 1;
      if (isMoving) commands.push({ kind: "end", request, workerId: slot.workerId });
      else this.#endless.add(request);
      if (!isBlocked) return;
    }
  }

  /** Where running requests have grown into half of their lookahead, paused sessions make way, then chunks end early. */
  #preempt({ slots, commands }: Turn): void {
    for (const slot of slots) {
      let short = -spareTokens(slot);
      if (short <= 0) continue;
      const { workerId } = slot;
      for (const request of this.sessions.makeWay(workerId, short)) {
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
  #serveSessions(turn: Turn): void {
    let passed = 0;
    for (const request of this.sessions.inOrder((one) => this.isUrgent(one))) {
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

  #serveInOrder(turn: Turn): void {
    // While a request runs, the next look is soon.
    const runs = turn.slots.some(({ inFlight }) => inFlight > 0);
    if (runs && this.#rooms.areFull(turn.slots)) {
      turn.isBlocked = true;
      return;
    }
    const passed: RolloutRequest[] = [];
    let areTurnsDue = this.sessions.turns.size > 0;
    for (;;) {
      if (areTurnsDue && (this.#policy.overdue?.() ?? null) === null) {
        areTurnsDue = false;
        this.#serveSessions(turn);
      }
      const request = this.#policy.peek();
      if (request === null) break;
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
    this.#rooms.lookedAt(turn.slots, turn.isBlocked);
  }

  /** Starts at most one suspect on a worker, so that the next death has one explanation. New requests need the other half. */
  #serveSuspects(turn: Turn): void {
    const { slots } = turn;
    let left = Math.max(1, Math.floor(slots.length / 2));
    for (const slot of slots) if (slot.hasSuspect) left -= 1;
    let looked = 0;
    for (const request of this.#suspects) {
      if (left <= 0 || looked >= PASSED_MAX) return;
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
      slot.hasSuspect = true;
      left -= 1;
      this.#dispatch(request, slot, chunkTokens, turn);
    }
  }

  #chunkOf(request: RolloutRequest, { kvTokens, blockTokens, sharesKv }: Turn): number {
    const left = request.spec.sampling.tokensMax - request.response.length;
    assert(left >= 1, "a waiting request has tokens left");
    if (this.#mode.kind === "pinned" || !request.spec.divisible) return left;
    return Math.min(
      left,
      this.#mode.chunks.tokens(contextTokens(request), { kvTokens, blockTokens, sharesKv }),
    );
  }

  #placeOf(request: RolloutRequest, slots: readonly Slot[], chunkTokens: number): Slot | null {
    if (this.#mode.kind === "divided") return place(request, slots, chunkTokens);
    const needed = contextTokens(request) + chunkTokens;
    const able = slots.filter(({ kvTokens }) => needed <= kvTokens);
    const { pin = ({ group }: RolloutRequest) => able[group.index % able.length] } = this.#mode;
    const slot = present(pin(request, able), "a worker can hold it");
    if (!isOpenTo(request, slot) || slot.hasSuspect) return null;
    // A suspect must not wait in the engine's queue, nor be preempted: it would be blamed for what others did.
    return isSuspect(request) && !hasRoom(request, slot, chunkTokens) ? null : slot;
  }

  #dispatch(request: RolloutRequest, slot: Slot, chunkTokens: number, { commands }: Turn): void {
    this.#leave(request);
    this.#reservation.dispatched();
    const reservedTokens = reservationOf(request, slot, chunkTokens);
    slot.kvTokensFree -= tokensNeeded(request, slot, chunkTokens);
    slot.inFlight += 1;
    if (isFirstTurn(request)) this.sessions.grow(slot, request.group);
    const { workerId } = slot;
    commands.push({ kind: "dispatch", request, workerId, chunkTokens, reservedTokens });
  }

  /** The request waits no more. */
  #leave(request: RolloutRequest): void {
    this.#rooms.changed();
    this.#parked.delete(request);
    this.sessions.turns.delete(request);
    this.#suspects.delete(request);
    this.stranded.delete(request);
    this.#reservation.leaves(request);
  }

  /** true: no worker that is there can ever hold it. It waits for one, or is rejected. */
  #strand(request: RolloutRequest, chunkTokens: number, turn: Turn): boolean {
    const kvTokensNeeded = contextTokens(request) + chunkTokens;
    if (kvTokensNeeded <= turn.kvTokens) return false;
    if (kvTokensNeeded <= turn.kvTokensMax) this.stranded.add(request);
    else turn.commands.push({ kind: "reject", request, kvTokensNeeded });
    return true;
  }

  /** Reconsiders stranded requests when workers have come or gone. */
  #recall({ kvTokens, kvTokensMax }: Turn): void {
    const at = this.#strandedAt;
    if (at.kvTokens === kvTokens && at.kvTokensMax === kvTokensMax) return;
    this.#strandedAt = { kvTokens, kvTokensMax };
    const stranded = [...this.stranded];
    this.stranded.clear();
    for (const request of stranded) this.enqueue(request);
  }

  /** Counts that others were served ahead of the request in this turn. */
  #passedOver(request: RolloutRequest, turn: Turn): void {
    const tokens = contextTokens(request) + this.#chunkOf(request, turn);
    this.#reservation.passedOver(request, turn.slots, tokens);
  }

  /** The worker that is kept free runs the request for which it is as soon as there is room. */
  #serveReservation(turn: Turn): void {
    const { request } = this.#reservation;
    if (request === null) return;
    const chunkTokens = this.#chunkOf(request, turn);
    const slot = this.#reservation.slot(turn.slots, contextTokens(request) + chunkTokens);
    if (slot === null) return;
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
    const offload = (request: RolloutRequest, workerId: WorkerId) =>
      turn.commands.push({ kind: "offload", request, workerId });
    for (const request of this.sessions.paused) {
      const workerId = present(request.residentOn, "a paused session is resident");
      keepers.add(workerId);
      if (this.sessions.stays(request, turn.slots, nowMs)) continue;
      this.sessions.paused.delete(request);
      offload(request, workerId);
    }
    for (const request of this.#parked) {
      const workerId = present(request.residentOn, "a parked request is resident");
      if (keepers.has(workerId)) continue;
      this.#parked.delete(request);
      offload(request, workerId);
    }
  }

  /** Whether requests behind one that has no room are served before it. */
  #mayPass(request: RolloutRequest, chunkTokens: number, slots: readonly Slot[]): boolean {
    // Its own worker keeps it out; those behind it have other ones.
    if (this.#mode.kind === "pinned") return true;
    const needed = contextTokens(request) + chunkTokens;
    return slots.some((slot) => {
      if (slot.inFlight >= slot.slots) return false;
      if (slot.isReserved || slot.hasSuspect || needed > slot.kvTokens) return true;
      return needed > LARGE_PART * slot.kvTokens;
    });
  }
}

/** A chunk that ends early should free this part of its worker's KV: then the next one does not have to end soon. */
const ROOM_PART = 1 / 16;

/**
 * Requests whose chunks may end early, in the order in which they do: of those that free enough, the one that costs
 * least to continue; then the others, the largest first; of equal ones that which was dispatched last. Not the one that
 * was dispatched first: some request always goes on.
 */
function victims({ running, kvTokens, blockTokens }: Slot): RolloutRequest[] {
  const [, ...rest] = running;
  const enough = ROOM_PART * kvTokens;
  // What is in a block that is not full is computed again; the last token has no KV yet.
  const costOf = (request: RolloutRequest): number =>
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
