// On which worker a chunk runs: where its KV is while the load is balanced, else on the least loaded
// worker with room (paper, section 4.5.3). Of workers that are not equally fast, where its tokens take the least time.
// Admission keeps each worker within its slots, and reserves KV
// for what a request has and for some tokens ahead (`lookahead.ts`).

import type { WorkerId } from "../base/ids.ts";
import {
  contextTokens,
  type Group,
  isFirstTurn,
  isSuspect,
  type RolloutRequest,
} from "../request/buffer.ts";

/** A worker as the scheduler sees it. The scheduler works on its own copies. */
export interface Slot {
  readonly workerId: WorkerId;
  /** Requests that may be in flight there: those it runs at the same time, and those that wait in its own queue. */
  readonly slots: number;
  /** Part of `slots`: those of its own queue. */
  readonly ahead: number;
  /** KV tokens in all. */
  readonly kvTokens: number;
  /** A request takes whole blocks of this many KV tokens. */
  readonly blockTokens: number;
  /** Groups whose prompts it holds once for all of their requests, those that are resident there. Absent: none. */
  readonly residents?: ReadonlyMap<Group, number>;
  /** Sessions with KV there, running or paused; and tokens by which all of them are expected to grow beyond it. */
  readonly sessions?: number;
  growthTokens?: number;
  /** KV tokens of the sessions that run there. */
  runningTokens?: number;
  /** true: other workers can load its KV, and it theirs. */
  readonly sharesKv: boolean;
  /** Requests dispatched to it and not yet returned: the load signal. */
  inFlight: number;
  /** Time of its steps over those of other workers; 1: as fast as they are (`pace.ts`). */
  readonly pace: number;
  /** Time of a row of its steps, ms; NaN: not known. */
  readonly rowMs: number;
  /** The part of a step that does not depend on its requests, as the number of requests that take as long. */
  readonly baseRequests: number;
  /** KV tokens not reserved by running requests nor held by parked ones. Negative: those that run have grown beyond it. */
  kvTokensFree: number;
  /** KV tokens reserved for a running request beyond those that it has, at most. */
  readonly aheadTokens: number;
  /** Running requests whose chunk was not ordered to end, in order of dispatch. */
  readonly running: Iterable<RolloutRequest>;
  /** Part of the KV tokens that are not free: those on their way out. */
  readonly kvTokensLeaving: number;
  /** A suspect on probation is in flight there: no other suspect may be, and no request begins there. */
  hasSuspect: boolean;
  /** true: the worker is kept free for a request that has waited for room for long. */
  isReserved: boolean;
}

/**
 * Affinity holds while load(home) - min(load) <= min(AFFINITY_SPREAD_MAX, min(load) / AFFINITY_SPREAD_DIVISOR).
 * The paper's threshold is 32 with hundreds in flight on each instance; the quotient scales it down
 * to small workers, and to zero in the tail, where one request more or less is everything.
 */
const AFFINITY_SPREAD_MAX = 32;
const AFFINITY_SPREAD_DIVISOR = 4;
/**
 * Affinity between workers of different speed: a request stays while a token takes at most this much longer on its
 * worker.
 */
const AFFINITY_TIME = 1 + 1 / AFFINITY_SPREAD_DIVISOR;

/**
 * KV of a request that leaves its worker goes along if the pool lacks more tokens of it than this; fewer are computed
 * again. The paper has 512. Moving all of it was never slower, in simulation (docs/SIMULATOR.md): with chunks of 2,048
 * and more the gap never is below 512, and with chunks of 512 a threshold of 512 costs 2 to 8 % of the time.
 */
export const PULL_GAP_TOKENS = 0;

const MARGIN_CHUNKS = 2;
/** A larger margin than this part of the KV costs more than chunks that end early. */
const MARGIN_PART = 1 / 16;

/**
 * KV tokens that are reserved for the request when its chunk begins. A suspect gets them all: it must not be preempted,
 * since it would be blamed for what others did.
 */
export function reservationOf(request: RolloutRequest, slot: Slot, chunkTokens: number): number {
  const ahead = isSuspect(request) ? chunkTokens : Math.min(chunkTokens, slot.aheadTokens);
  return Math.min(slot.kvTokens, inBlocks(contextTokens(request) + ahead, slot.blockTokens));
}

/** KV tokens of the blocks that hold `tokens`. */
export function inBlocks(tokens: number, blockTokens: number): number {
  return Math.ceil(tokens / blockTokens) * blockTokens;
}

/** KV tokens of the prompt's full blocks, which requests of the group can share. */
export function promptTokens({ prompt }: Group, blockTokens: number): number {
  return prompt.length - (prompt.length % blockTokens);
}

/** KV tokens a worker must have free for the request to begin. */
export function tokensNeeded(request: RolloutRequest, slot: Slot, chunkTokens: number): number {
  const isThere = request.residentOn === slot.workerId;
  const { residents, blockTokens } = slot;
  const shared = residents?.has(request.group) ? promptTokens(request.group, blockTokens) : 0;
  const held = isThere ? request.residentTokens : shared;
  return reservationOf(request, slot, chunkTokens) - held;
}

export function hasRoom(request: RolloutRequest, slot: Slot, chunkTokens: number): boolean {
  if (slot.inFlight >= slot.slots) return false;
  if (contextTokens(request) + chunkTokens > slot.kvTokens) return false;
  const growth = isFirstTurn(request) ? (slot.growthTokens ?? 0) : 0;
  // A turn ends soon by itself.
  const spare = request.spec.keepsKv === true ? growth : marginTokens(slot, chunkTokens);
  const margin = slot.inFlight === 0 ? 0 : spare;
  return tokensNeeded(request, slot, chunkTokens) + margin <= slot.kvTokensFree;
}

/**
 * KV tokens that stay free when a chunk begins, so that running requests can grow until one of their chunks ends by
 * itself: where chunks are short, that frees KV, and none has to be ended early. With chunks of n tokens that end at
 * random, running requests generate n tokens from one end to the next on average, and more than 2 n in one of eight
 * cases. 0 where whole chunks are reserved.
 */
function marginTokens(slot: Slot, chunkTokens: number): number {
  if (slot.aheadTokens >= chunkTokens) return 0;
  const margin = MARGIN_CHUNKS * chunkTokens;
  return margin <= MARGIN_PART * slot.kvTokens ? margin : 0;
}

/** Tokens that running requests may generate before a chunk must end early: half of their lookahead stays free. */
export function spareTokens(slot: Slot): number {
  return slot.kvTokensFree + slot.kvTokensLeaving + (slot.inFlight * slot.aheadTokens) / 2;
}

/** Whether the worker takes requests such as this one now, if it has room. A suspect runs at once or not at all. */
export function isOpenTo(request: RolloutRequest, slot: Slot): boolean {
  if (slot.isReserved) return false;
  if (isSuspect(request)) return !slot.hasSuspect && slot.inFlight < slot.slots - slot.ahead;
  return !slot.hasSuspect || request.response.length > 0;
}

/** Loading a token's KV from the pool costs at most this part of computing the token again. */
export const LOAD_COST = 1 / 32;

/** The worker for the chunk, or null when none has room now. */
export function place(
  request: RolloutRequest,
  slots: readonly Slot[],
  chunkTokens: number,
): Slot | null {
  if (request.spec.keepsKv === true) return placeTurn(request, slots, chunkTokens);
  let least: Slot | null = null;
  let home: Slot | null = null;
  for (const slot of slots) {
    if (!isOpenTo(request, slot) || !hasRoom(request, slot, chunkTokens)) continue;
    if (slot.workerId === request.residentOn) home = slot;
    if (least === null || isLessLoaded(slot, least)) least = slot;
  }
  if (home === null || least === null) return least;
  if (home.pace !== least.pace) {
    return tokenTime(home) <= AFFINITY_TIME * tokenTime(least) ? home : least;
  }
  const spreadMax = Math.min(
    AFFINITY_SPREAD_MAX,
    Math.floor(least.inFlight / AFFINITY_SPREAD_DIVISOR),
  );
  return home.inFlight - least.inFlight <= spreadMax ? home : least;
}

/**
 * The worker where a turn of a session costs it and the others least. Each token that the worker lacks of the turn's
 * prefix is a row of its steps, for which those that run there wait too; each token of the chunk takes a step, which
 * the turn makes longer by a row for them, as they do for it. null: none has room, or it waits for that of its own.
 */
function placeTurn(
  request: RolloutRequest,
  slots: readonly Slot[],
  chunkTokens: number,
): Slot | null {
  let best: Slot | null = null;
  let leastTime = Number.POSITIVE_INFINITY;
  for (const slot of slots) {
    const isOpen = isOpenTo(request, slot) && contextTokens(request) + chunkTokens <= slot.kvTokens;
    const isOwn = slot.workerId === request.workerId;
    const mustWait = !hasRoom(request, slot, chunkTokens);
    if (!isOpen || (mustWait && !isOwn)) continue;
    const lacking = contextTokens(request) - prefixTokens(request, slot);
    const isSaved = request.computedTokens > 0 || request.response.length > 0;
    const rows = lacking * (slot.sharesKv && isSaved ? LOAD_COST : 1);
    const { pace, baseRequests, inFlight } = slot;
    // Room comes when a chunk ends.
    const steps = chunkTokens * (baseRequests + 1 + inFlight) * (mustWait ? 2 : 1);
    const time = pace * (rows * (1 + inFlight) + steps + chunkTokens * inFlight);
    if (time > leastTime) continue;
    if (time === leastTime && best !== null && !isLessLoaded(slot, best)) continue;
    best = slot;
    leastTime = time;
  }
  return best !== null && hasRoom(request, best, chunkTokens) ? best : null;
}

/** First tokens of the request that the worker has computed: in its own turns, or for its siblings. */
function prefixTokens(request: RolloutRequest, { workerId }: Slot): number {
  const { residentOn, residentTokens, group, response } = request;
  if (residentOn === workerId) return Math.min(residentTokens, contextTokens(request));
  const own = response.length > 0 ? contextTokens(request) : request.computedTokens;
  if (request.workerId === workerId && own > 0) return own;
  return group.promptOn.has(workerId) ? group.prompt.length : 0;
}

function isLessLoaded(a: Slot, b: Slot): boolean {
  if (a.pace !== b.pace) return tokenTime(a) < tokenTime(b);
  if (a.inFlight !== b.inFlight) return a.inFlight < b.inFlight;
  return a.kvTokensFree > b.kvTokensFree;
}

/** Time of a token of the request there, in a unit that workers share. */
function tokenTime({ pace, baseRequests, inFlight }: Slot): number {
  return pace * (baseRequests + inFlight + 1);
}
