// Every sequence of events up to a length, and longer ones by chance, against what must hold after each step.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { assert } from "../core/base/assert.ts";
import { weightEpoch } from "../core/base/ids.ts";
import {
  type Effect,
  isCurrent,
  type MemberEvent,
  type MemberRecord,
  newMember,
  next,
  RETRY_MS_MAX,
} from "./member.ts";

/** Exhaustive: all sequences of this many events. */
const LENGTH = 4;

/** State of the pool's shell after the effects: the model that the record is compared with. */
interface Outside {
  readonly epoch: number;
  readonly isPlaced: boolean;
  readonly hasRetry: boolean;
  readonly isDraining: boolean;
}

type Make = (member: MemberRecord, epoch: number) => MemberEvent;

const at = (n: number) => weightEpoch(n);
const opened =
  (isFirst: boolean, keepsWeights: boolean, late = 0): Make =>
  ({ attempt }, epoch) => ({
    kind: "opened",
    attempt: attempt - late,
    epoch: at(epoch),
    isFirst,
    keepsWeights,
  });
const checked =
  (kind: "current" | "behind" | "silent", { late = 0, before = 0, isGiven = false } = {}): Make =>
  ({ attempt }, epoch) => ({
    kind: "checked",
    attempt: attempt - late,
    checked: at(epoch - before),
    epoch: at(epoch),
    result:
      kind === "current"
        ? { kind }
        : kind === "behind"
          ? { kind, reason: kind, isGiven }
          : { kind, reason: kind },
  });

const missed =
  (has: "others" | "unknown" | "lost"): Make =>
  (_, epoch) => ({ kind: "missed", epoch: at(epoch + 1), reason: "missed", has });

/** Every kind of event, with what distinguishes one of a kind from another. */
const EVENTS: Readonly<Record<string, Make>> = {
  open: () => ({ kind: "open" }),
  openedFirst: opened(true, true),
  openedKeeping: opened(false, true),
  openedFresh: opened(false, false),
  openedLate: opened(true, true, 1),
  openFailed: ({ attempt }) => ({ kind: "open_failed", attempt, reason: "refused" }),
  current: checked("current"),
  currentBefore: checked("current", { before: 1 }),
  currentLate: checked("current", { late: 1 }),
  behind: checked("behind"),
  behindGiven: checked("behind", { isGiven: true }),
  silent: checked("silent"),
  failed: () => ({ kind: "failed", reason: "killed" }),
  lost: () => ({ kind: "reach", reason: "lost" }),
  regained: () => ({ kind: "reach", reason: null }),
  leave: () => ({ kind: "leave", msMax: 1000 }),
  stay: () => ({ kind: "stay" }),
  drained: ({ departure }) => ({ kind: "drained", departure }),
  drainedLate: ({ departure }) => ({ kind: "drained", departure: departure - 1 }),
  updated: (_, epoch) => ({ kind: "updated", epoch: at(epoch + 1) }),
  missed: missed("others"),
  missedUnsure: missed("unknown"),
  missedLost: missed("lost"),
  differs: () => ({ kind: "differs", reason: "differs" }),
  begun: () => ({ kind: "begun", took: "took" }),
  asked: () => ({ kind: "asked", reason: "a part" }),
  partTaken: () => ({ kind: "part", took: "took" }),
  partMissed: () => ({ kind: "part", took: "touched" }),
  partRefused: () => ({ kind: "part", took: "none" }),
  reports: () => ({ kind: "reports", version: "step-1" }),
  stale: () => ({ kind: "judged", stale: "stale", epoch: null }),
  unusable: () => ({ kind: "reopen", reason: "unusable", hasOthers: true }),
  reopen: () => ({ kind: "reopen", reason: "hangs", hasOthers: false }),
  reportsCurrent: (_, epoch) => ({ kind: "judged", stale: null, epoch: at(epoch) }),
};

const FIRST: Outside = { epoch: 1, isPlaced: false, hasRetry: false, isDraining: false };

/** Follows the effects, and checks each where it is carried out. */
function outsideAfter(before: Outside, event: MemberEvent, effects: readonly Effect[]): Outside {
  const isUpdate = event.kind === "updated" || event.kind === "missed";
  const after = { ...before, epoch: before.epoch + (isUpdate ? 1 : 0) };
  let openings = 0;
  for (const effect of effects) {
    switch (effect.kind) {
      case "place":
        after.isPlaced = true;
        break;
      case "remove":
      case "close":
        after.isPlaced = false;
        break;
      case "open":
        openings += 1;
        after.hasRetry = false;
        break;
      case "retry":
        assert(effect.ms > 0 && effect.ms <= RETRY_MS_MAX, "a retry has a bound");
        after.hasRetry = true;
        break;
      case "drain":
        assert(effect.msMax > 0, "a drain has a deadline");
        after.isDraining = true;
    }
  }
  assert(openings <= 1, "never two openings at once");
  return after;
}

function check(member: MemberRecord, outside: Outside): void {
  const { state, link, isPlaced, reason } = member;
  const serves = state === "ready" || state === "reconnecting";
  assert(isPlaced === outside.isPlaced, "the record and the rollout agree on who is placed");
  assert(!isPlaced || link === "open", "only an engine with a worker is placed");
  if (state === "ready") assert(isPlaced && reason === null, "ready is placed, and has no reason");
  else assert(reason !== null, "whoever does not serve says why");
  if (isPlaced && state !== "leaving") assert(serves, `${state} is not in the rollout`);
  if (state === "fenced") assert(!isPlaced, "a fenced engine does not serve");
  // A change of weights is on its way while `uncertain` is set of an engine that serves: nothing runs then.
  if (isPlaced)
    assert(member.held === member.wanted, "an engine serves with the wanted weights only");
  if (state === "down" && !member.isGone && member.attempt > 0) {
    assert(link !== "none" || outside.hasRetry, "down: it is being opened, or will be");
  }
  if (state === "leaving" && isPlaced)
    assert(outside.isDraining, "whoever leaves is waited for with a deadline");
}

function stepped(
  member: MemberRecord,
  outside: Outside,
  make: Make,
): { readonly member: MemberRecord; readonly outside: Outside } {
  const event = make(member, outside.epoch);
  const { member: after, effects } = next(member, event);
  if (member.isGone) {
    const isSilent = effects.length === 0;
    assert(isSilent && after === member, "nothing happens to a member that was removed");
  }
  const becameReady = effects.some(({ kind }) => kind === "place");
  if (becameReady) {
    assert(isCurrent(after), "whoever begins to serve is certain to have the wanted weights");
    const isConfirmed = event.kind === "checked" || event.kind === "judged";
    assert(isConfirmed, "an engine serves after a check, or after its server's own report");
    assert(event.kind === "checked" || member.uncertain === null, "a report cures no uncertainty");
  }
  if (member.state === "fenced" && after.state === "fenced" && event.kind === "open") {
    assert(!after.isPlaced, "a fenced engine that is opened again stays out until it is checked");
  }
  const outsideNow = outsideAfter(outside, event, effects);
  check(after, outsideNow);
  return { member: after, outside: outsideNow };
}

/** From an engine that serves all sequences of LENGTH events, and from the others all that are one shorter. */
const STARTS: readonly string[][] = [
  ["open", "openedFirst", "current"],
  ["open"],
  ["open", "openedFirst"],
  ["open", "openedFresh", "behind"],
  ["open", "openedFirst", "current", "lost"],
  ["open", "openedFirst", "current", "leave"],
  ["open", "openedFirst", "current", "begun", "asked"],
];

test(`member: every sequence of ${LENGTH} events`, () => {
  const makes = Object.values(EVENTS);
  let count = 0;
  const walk = (member: MemberRecord, outside: Outside, left: number): void => {
    if (left === 0) {
      count += 1;
      return;
    }
    for (const make of makes) {
      const after = stepped(member, outside, make);
      walk(after.member, after.outside, left - 1);
    }
  };
  for (const [i, start] of STARTS.entries()) {
    let now = { member: newMember(at(1)), outside: FIRST };
    for (const name of start) now = stepped(now.member, now.outside, EVENTS[name] as Make);
    walk(now.member, now.outside, i === 0 ? LENGTH : LENGTH - 1);
  }
  // 1.8 million.
  expect(count).toBe(makes.length ** LENGTH + (STARTS.length - 1) * makes.length ** (LENGTH - 1));
}, 180_000);

test("member: long sequences by chance, after which the engine comes back or was removed", () => {
  const names = fc.array(fc.constantFrom(...Object.keys(EVENTS)), { maxLength: 60 });
  const property = fc.property(names, (plan) => {
    let now = { member: newMember(at(1)), outside: FIRST };
    for (const name of ["open", ...plan]) {
      now = stepped(now.member, now.outside, EVENTS[name] as Make);
    }
    // An update that was left open is given up; an engine that works again serves again.
    for (const name of ["stay", "unusable", "open", "openedFresh", "current", "regained"]) {
      now = stepped(now.member, now.outside, EVENTS[name] as Make);
    }
    const { member } = now;
    assert(
      member.isGone || (member.state === "ready" && isCurrent(member)),
      `it is ${member.state}`,
    );
  });
  fc.assert(property, { numRuns: 5_000, seed: Number(process.env.SEED ?? 30) });
});
