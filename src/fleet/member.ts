// One engine of the pool as a record, and the table of what each event makes of it. `next` is pure: it returns the new record
// and effects as data, which the pool carries out. An engine serves only while it is certain to hold the wanted weights.
//
//   down -> ready -> reconnecting -> ready    the session went on
//                         |  \-----> ready    it was over: its requests have moved, the engine was opened again
//           ready -> down, fenced -> ready    any of them -> leaving -> removed, or back

import { assert, unreachable } from "../core/base/assert.ts";
import type { WeightEpoch } from "../core/base/ids.ts";

/**
 * ready: it serves. reconnecting: it served, its connection is lost and is being made again; it takes nothing new.
 * fenced: reachable, but its weights are not current, or not those of the others. down: not reachable. leaving: it takes
 * nothing new, and is removed when what it runs has ended.
 */
export type MemberState = "ready" | "reconnecting" | "fenced" | "down" | "leaving";

export interface MemberRecord {
  readonly state: MemberState;
  /** Reason why the engine does not serve; null: it serves. */
  readonly reason: string | null;
  /** none: no worker. opening: attempt `attempt` connects. checking: the attempt compares weights. open: it has a worker. */
  readonly link: "none" | "opening" | "checking" | "open";
  readonly isPlaced: boolean;
  /** The weight epoch whose weights the engine was given or opened with; null: it has others. */
  readonly held: WeightEpoch | null;
  /** The weight epoch in service, as far as this record has been notified. */
  readonly wanted: WeightEpoch;
  /** Reason why the engine's weights are uncertain; null: they are those of `held`. */
  readonly uncertain: string | null;
  /** The engine's part in the open weight update of several requests, or in the last one, over this connection. */
  readonly update: UpdateShare;
  /** Reason why the connection is lost; null: connected. */
  readonly lost: string | null;
  /** Number of the last attempt to open the engine: results of earlier ones are discarded. */
  readonly attempt: number;
  /** Number of the last departure: the end of an earlier one is ignored. */
  readonly departure: number;
  /** Attempts in a row that did not bring the engine into service. */
  readonly tries: number;
  readonly isGone: boolean;
  /** Version of the weights that the engine's server has reported last; null: none. */
  readonly reported: string | null;
  /** Why the engine is stale: it reports an old version, and another engine the current one; null: it is not stale. */
  readonly stale: string | null;
}

/**
 * An engine's part in a weight update of several requests. isBegun: the engine began the update, or may have. isWhole: it
 * has taken every request so far. isAsked: its weights were certain until it was asked to take a part, which it has not
 * answered.
 */
export interface UpdateShare {
  readonly isBegun: boolean;
  readonly isWhole: boolean;
  readonly isAsked: boolean;
}

/**
 * Result of a request on an engine. took: carried out. touched: failed in the middle, or not answered. none: refused,
 * or not sent.
 */
export type Took = "took" | "touched" | "none";

const NO_UPDATE: UpdateShare = { isBegun: false, isWhole: false, isAsked: false };

/** How the weights of a newly opened engine compare with those of the epoch `checked`. */
export type Check =
  | { readonly kind: "current" }
  /** `isGiven`: the engine took the weights that it was given, and still differs from the others. */
  | { readonly kind: "behind"; readonly reason: string; readonly isGiven: boolean }
  /** The engine has not answered. */
  | { readonly kind: "silent"; readonly reason: string };

export type MemberEvent =
  | { readonly kind: "open" }
  /** `isFirst`: the engine was opened with the weights in service. `keepsWeights`: see WorkerSource. */
  | {
      readonly kind: "opened";
      readonly attempt: number;
      readonly epoch: WeightEpoch;
      readonly isFirst: boolean;
      readonly keepsWeights: boolean;
    }
  | { readonly kind: "open_failed"; readonly attempt: number; readonly reason: string }
  /** `epoch`: the one that serves now; a check under an earlier one counts for nothing. */
  | {
      readonly kind: "checked";
      readonly attempt: number;
      readonly checked: WeightEpoch;
      readonly epoch: WeightEpoch;
      readonly result: Check;
    }
  | { readonly kind: "failed"; readonly reason: string }
  /** The connection is lost (`reason`), or works again (null); the session goes on. */
  | { readonly kind: "reach"; readonly reason: string | null }
  | { readonly kind: "leave"; readonly msMax: number }
  | { readonly kind: "stay" }
  | { readonly kind: "drained"; readonly departure: number }
  /** The next weight epoch begins, and the engine has its weights. */
  | { readonly kind: "updated"; readonly epoch: WeightEpoch }
  /**
   * The next weight epoch begins, and the engine lacks its weights. others: it has those of another epoch. unknown: its
   * weights are not known. lost: it does not answer, or can be given them when it is opened again.
   */
  | {
      readonly kind: "missed";
      readonly epoch: WeightEpoch;
      readonly reason: string;
      readonly has: "others" | "unknown" | "lost";
    }
  /** The engine's weights are not those that serve. */
  | { readonly kind: "differs"; readonly reason: string }
  /** A weight update of several requests begins. */
  | { readonly kind: "begun"; readonly took: Took }
  /** The engine is asked to take a part of the update, and may have other weights from now on. */
  | { readonly kind: "asked"; readonly reason: string }
  /** The engine has answered. */
  | { readonly kind: "part"; readonly took: Took }
  /** The engine is opened again. `hasOthers`: it may have other weights, as after a part of an update. */
  | { readonly kind: "reopen"; readonly reason: string; readonly hasOthers: boolean }
  | { readonly kind: "reports"; readonly version: string }
  /**
   * The engine's report was compared with the current version. `stale`: how it differs; null: it does not. `epoch`: the
   * engine is certain to report the weights of this one; null: it is not certain.
   */
  | { readonly kind: "judged"; readonly stale: string | null; readonly epoch: WeightEpoch | null };

export type Effect =
  /** Close the member's workers, then open the engine and report `opened` or `open_failed`. */
  | { readonly kind: "open"; readonly attempt: number }
  | { readonly kind: "close" }
  /** Use the newly opened worker as the member's. */
  | { readonly kind: "use_opened" }
  /** Drop the worker's state of earlier epochs. */
  | { readonly kind: "advance" }
  | { readonly kind: "place" }
  | { readonly kind: "remove" }
  | {
      readonly kind: "set_reachable";
      readonly isReachable: boolean;
      readonly isLeaving?: boolean;
    }
  | { readonly kind: "retry"; readonly attempt: number; readonly ms: number }
  /** Report `drained` when nothing runs on it, after `msMax` at the latest. */
  | { readonly kind: "drain"; readonly departure: number; readonly msMax: number }
  | { readonly kind: "forget" }
  | { readonly kind: "tell" };

export interface Step {
  readonly member: MemberRecord;
  readonly effects: readonly Effect[];
}

/** Pause between two attempts to open an engine that is down: the first one, and the longest. */
const RETRY_MS = 100;
export const RETRY_MS_MAX = 2_000;
/** Attempts that fail alike: the first ones are reported, and then about one per minute. */
const TRIES_REPORTED = 8;
const TRIES_PER_MINUTE = 30;

const TELL: Effect = { kind: "tell" };

export function newMember(wanted: WeightEpoch): MemberRecord {
  return {
    state: "down",
    reason: "not opened yet",
    link: "none",
    isPlaced: false,
    held: null,
    wanted,
    uncertain: null,
    update: NO_UPDATE,
    lost: null,
    attempt: 0,
    departure: 0,
    tries: 0,
    isGone: false,
    reported: null,
    stale: null,
  };
}

/** Whether the engine is certain to have the weights in service. */
export function isCurrent({ held, wanted, uncertain }: MemberRecord): boolean {
  return held === wanted && uncertain === null;
}

export function next(member: MemberRecord, event: MemberEvent): Step {
  if (member.isGone) return step(member);
  const isOpen = member.link === "open";
  switch (event.kind) {
    case "open":
      return open(member);
    case "opened":
      return opened(member, event);
    case "open_failed":
      return isUnderWay(member, event) ? down(member, event.reason) : step(member);
    case "checked":
      return checked(member, event);
    case "failed":
      return isOpen || member.link === "checking" ? down(member, event.reason) : step(member);
    case "reach":
      return reach({ ...member, lost: event.reason });
    case "leave":
      return leave(member, event.msMax);
    case "stay":
      return stay(member);
    case "drained":
      return event.departure === member.departure && member.state === "leaving"
        ? gone(member)
        : step(member);
    case "updated":
      return updated(member, event.epoch);
    case "missed":
      return missed({ ...member, wanted: event.epoch }, event);
    case "differs":
      return member.isPlaced && isOpen ? fence(member, event.reason) : step(member);
    case "begun": {
      const { took } = event;
      const update = { isBegun: took !== "none", isWhole: took === "took", isAsked: false };
      return step({ ...member, update });
    }
    case "asked": {
      const update = { ...member.update, isAsked: member.uncertain === null };
      return step({ ...member, update, uncertain: member.uncertain ?? event.reason });
    }
    case "part":
      return part(member, event.took);
    case "reopen": {
      const uncertain = event.hasOthers ? event.reason : member.uncertain;
      return lose({ ...member, uncertain }, event.reason);
    }
    case "reports":
      return step({ ...member, reported: event.version });
    case "judged":
      return judged({ ...member, stale: event.stale }, event.epoch);
    default:
      return unreachable(event);
  }
}

function step(member: MemberRecord, ...effects: Effect[]): Step {
  return { member, effects };
}

function first(effect: Effect, { member, effects }: Step): Step {
  return step(member, effect, ...effects);
}

function isUnderWay({ link, attempt, state }: MemberRecord, event: { attempt: number }): boolean {
  const isLast = attempt === event.attempt && state !== "leaving";
  return isLast && (link === "opening" || link === "checking");
}

/** An engine that serves, or that leaves, is not opened. A fenced one keeps what it holds: it may have been updated. */
function open(member: MemberRecord): Step {
  if (member.state === "leaving" || member.isPlaced) return step(member);
  const attempt = member.attempt + 1;
  const opening = { ...member, link: "opening", attempt, lost: null, update: NO_UPDATE } as const;
  return step(opening, { kind: "open", attempt });
}

function opened(member: MemberRecord, event: Extract<MemberEvent, { kind: "opened" }>): Step {
  if (!isUnderWay(member, event)) return step(member);
  const { epoch, isFirst, keepsWeights } = event;
  const heldBefore = keepsWeights ? member.held : null;
  const uncertain = keepsWeights ? member.uncertain : null;
  const held = isFirst ? epoch : heldBefore;
  return step({ ...member, link: "checking", wanted: epoch, held, uncertain });
}

function checked(member: MemberRecord, event: Extract<MemberEvent, { kind: "checked" }>): Step {
  if (member.link !== "checking" || !isUnderWay(member, event)) return step(member);
  const { epoch, result } = event;
  // The weights have changed meanwhile: it is still checking, and the pool begins again.
  if (event.checked !== epoch)
    return step({ ...member, wanted: epoch, held: null }, { kind: "advance" });
  switch (result.kind) {
    case "silent":
      return down(member, result.reason);
    case "behind": {
      const uncertain = result.isGiven ? null : member.uncertain;
      const behind = { ...member, link: "open", held: null, wanted: epoch, uncertain } as const;
      return first({ kind: "use_opened" }, fence(behind, uncertain ?? result.reason));
    }
    case "current":
      return first({ kind: "use_opened" }, place({ ...member, link: "open", wanted: epoch }));
    default:
      return unreachable(result);
  }
}

function place(member: MemberRecord): Step {
  const { wanted, lost } = member;
  const state = lost === null ? "ready" : "reconnecting";
  const serving = {
    state,
    reason: lost,
    isPlaced: true,
    held: wanted,
    uncertain: null,
    tries: 0,
  } as const;
  const unreached: Effect[] = lost === null ? [] : [{ kind: "set_reachable", isReachable: false }];
  return step({ ...member, ...serving }, { kind: "place" }, ...unreached, TELL);
}

/** Takes a member out of service and keeps its connection. A member that leaves does so without its requests. */
function fence(member: MemberRecord, reason: string): Step {
  const isLeaving = member.state === "leaving";
  const fenced = isLeaving ? {} : ({ state: "fenced", reason } as const);
  return step({ ...member, ...fenced, held: null, isPlaced: false }, { kind: "remove" }, TELL);
}

/** A trainer that goes on does not send a part again: whoever has missed one is not whole any more. */
function part(member: MemberRecord, took: Took): Step {
  const { update } = member;
  const uncertain = took === "none" && update.isAsked ? null : member.uncertain;
  const isBegun = update.isBegun || took !== "none";
  const isWhole = update.isWhole && took === "took";
  return step({ ...member, uncertain, update: { isBegun, isWhole, isAsked: false } });
}

/** Records the epoch's weights. A member that has lost its connection since is opened again, and compared then. */
function updated(member: MemberRecord, epoch: WeightEpoch): Step {
  const held = member.link === "open" ? epoch : null;
  return step({ ...member, wanted: epoch, held, uncertain: null });
}

function missed(member: MemberRecord, event: Extract<MemberEvent, { kind: "missed" }>): Step {
  if (member.link !== "open") return step(member);
  if (event.has === "lost") return lose(member, event.reason);
  const isUnknown = event.has === "unknown";
  const uncertain = isUnknown ? (member.uncertain ?? event.reason) : member.uncertain;
  const behind = { ...member, uncertain, held: null };
  return member.state === "fenced" ? step(behind) : fence(behind, event.reason);
}

/** A report takes a stale engine out of service, and cures no uncertainty. */
function judged(member: MemberRecord, epoch: WeightEpoch | null): Step {
  const { stale, state, link, isPlaced, uncertain } = member;
  if (link !== "open") return step(member);
  if (stale !== null && isPlaced && state !== "leaving") return fence(member, stale);
  if (epoch === null || state !== "fenced" || uncertain !== null) return step(member);
  return first({ kind: "advance" }, place({ ...member, wanted: epoch }));
}

function reach(member: MemberRecord): Step {
  const { lost, state, link, isPlaced, reason } = member;
  const isReachable = lost === null;
  if (link !== "open" || !isPlaced || (state === "leaving" && isReachable)) return step(member);
  if (state === "leaving") return step(member, { kind: "set_reachable", isReachable });
  const notices: Effect[] = reason === lost ? [] : [TELL];
  const reached = {
    ...member,
    state: isReachable ? "ready" : "reconnecting",
    reason: lost,
  } as const;
  return step(reached, { kind: "set_reachable", isReachable }, ...notices);
}

/** Closes an engine that no longer answers, or whose session must not go on. */
function lose(member: MemberRecord, reason: string): Step {
  if (member.link !== "open") return step(member);
  const state = member.state === "leaving" ? "leaving" : "down";
  return first({ kind: "remove" }, down({ ...member, state }, reason));
}

/**
 * Records that a member's worker has ended. A reconnecting member stays one: the pool continues where the session
 * ended.
 */
function down(member: MemberRecord, reason: string): Step {
  const { link, attempt } = member;
  const isKept = member.state === "leaving" || member.state === "reconnecting";
  const state = isKept ? member.state : "down";
  const isNews = link === "open" || state !== member.state || reason !== member.reason;
  const tries = member.tries + 1;
  const isReported = isNews || tries <= TRIES_REPORTED || tries % TRIES_PER_MINUTE === 0;
  const closed = {
    ...member,
    state,
    reason,
    tries,
    link: "none",
    isPlaced: false,
    held: null,
    update: NO_UPDATE,
  } as const;
  const effects: Effect[] = [{ kind: "close" }, ...(isReported ? [TELL] : [])];
  if (state === "leaving") return step(closed, ...effects);
  const ms = Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** member.tries);
  return step(closed, ...effects, { kind: "retry", attempt, ms });
}

/** A member that leaves already keeps its deadline, unless this one is immediate. */
function leave(member: MemberRecord, msMax: number): Step {
  if (member.state === "leaving" && msMax > 0) return step(member);
  const departure = member.departure + 1;
  const leaving = {
    ...member,
    state: "leaving",
    reason: "removed by a client",
    departure,
  } as const;
  if (!member.isPlaced) return first(TELL, gone(leaving));
  const drain: Effect = { kind: "drain", departure, msMax };
  const isReachable = member.lost === null;
  return step(leaving, TELL, { kind: "set_reachable", isReachable, isLeaving: true }, drain);
}

/** Takes back a departure: a second member for the same engine would count its KV and slots twice. */
function stay(member: MemberRecord): Step {
  if (member.state !== "leaving") return step(member);
  const departure = member.departure + 1;
  const back = { ...member, departure, state: "down" } as const;
  return member.isPlaced ? reach(back) : open(back);
}

function gone(member: MemberRecord): Step {
  assert(member.state === "leaving", "only an engine that leaves is removed");
  const effects: Effect[] = member.isPlaced ? [{ kind: "remove" }] : [];
  const removed = { ...member, isGone: true, isPlaced: false, link: "none" } as const;
  return step(removed, ...effects, { kind: "forget" }, { kind: "close" });
}
