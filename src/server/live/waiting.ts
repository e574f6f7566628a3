// What the server waits for: the iteration for its responses, responses for engines, calls for answers. Each row is a state,
// a reason in words, and an estimate of the time until it ends.

import type { EngineClock, WaitState } from "../../core/rollout/progress-clock.ts";
import type { Progress } from "../../core/rollout/report.ts";
import type { Member } from "../../fleet/engines.ts";
import type { OpenWait } from "../../fleet/waits.ts";
import type { ServingState } from "./serving-state.ts";
import { LONG_RATIO, type OpenResponse } from "./waited-for.ts";

export interface Waiting {
  readonly kind: "generation" | "iteration" | "engine" | "call";
  readonly state: WaitState;
  /** The waiting part, whom it waits for, and why. */
  readonly reason: string;
  /** Time for which it has waited; null: it did not begin at one time. */
  readonly since_s: number | null;
  /** Time until it ends, or is given up; null: not known. */
  readonly estimate_s: number | null;
}

export interface Seen {
  readonly progress: Progress;
  readonly iteration: number;
  readonly state: ServingState;
  readonly stateS: number;
  /** The longest responses that are not finished. */
  readonly longest: readonly OpenResponse[];
  /** Whether the wanted number of workers has been ready at the same time. */
  readonly hasStarted: boolean;
  readonly members: readonly Pick<Member, "source" | "workerId" | "state" | "reason" | "record">[];
  readonly clocks: readonly EngineClock[];
  readonly waits: readonly OpenWait[];
  readonly nameOf: (worker: number) => string;
  readonly nowMs: number;
}

/** Prefix of a group's id before the client's name of it. */
const OWN_NAME = /^g\d+:(rollout-[0-9a-f-]+\/)?/;

export function waitingFor(seen: Seen): Waiting[] {
  const { members, clocks, waits, nameOf, nowMs } = seen;
  const late = clocks.filter(({ state }) => state !== "ok");
  return [
    ...generation(seen),
    ...iteration(seen),
    ...members.flatMap((member) => away(member)),
    ...late.map((clock) => engine(clock, nameOf(clock.worker))),
    ...waits.map((wait) => call(wait, nowMs)),
  ];
}

function generation({ state: { state: name, reason }, stateS, progress, hasStarted }: Seen) {
  if (name === "serving") return [];
  const open = progress.requests - progress.requestsDone;
  const who = open === 0 ? "no response waits" : waiters(open);
  const state: WaitState = name === "no_worker" && hasStarted && open > 0 ? "stuck" : "ok";
  const why = `${who} for ${stateS} s: ${name.replace("_", " ")}; ${reason}`;
  return [{ kind: "generation" as const, state, reason: why, since_s: stateS, estimate_s: null }];
}

function iteration({ progress, iteration: number, longest }: Seen): Waiting[] {
  const [first] = longest;
  const { requests, requestsDone, etaS, elapsedS } = progress;
  if (first === undefined) return [];
  const open = requests - requestsDone;
  const named = `group ${first.group.replace(OWN_NAME, "")} response ${first.index}`;
  const isLong = first.length > LONG_RATIO * (first.siblings_median ?? Number.POSITIVE_INFINITY);
  const parts = [
    `iteration ${number} waits for ${figure(open)} of ${figure(requests)}: ${open > 1 ? "the longest is " : ""}${named}, ${figure(first.length)} tokens`,
    first.reason,
    ...(etaS === null ? [] : [`estimate ${figure(etaS)} s`]),
  ];
  return [
    {
      kind: "iteration",
      state: isLong ? "slow" : "ok",
      reason: parts.join("; "),
      since_s: elapsedS,
      estimate_s: etaS,
    },
  ];
}

/** The wait for an engine that is away; one that has not come yet is being opened, which has a row of its own. */
function away({ source, workerId, state, reason: why, record }: Seen["members"][number]) {
  if (state === "ready" || state === "leaving" || why === null) return [];
  if (state === "down" && record.tries === 0) return [];
  const reason = `engine ${workerId} (${source.name}) does not serve: ${state}; ${why}`;
  const how: WaitState = state === "reconnecting" ? "slow" : "stuck";
  return [{ kind: "engine" as const, state: how, reason, since_s: null, estimate_s: null }];
}

function engine(clock: EngineClock, name: string): Waiting {
  const { worker, state, doing, running, silentMs, isSilent, stepMs, pace } = clock;
  const step = stepMs === null ? "it has made no step yet" : `a step takes ${figure(stepMs)} ms`;
  const who = `engine ${worker} (${name})`;
  const reason = isSilent
    ? `${waiters(running)} for ${who}: no token or step for ${figure(silentMs / 1000)} s (${doing}); ${step}`
    : `${who} is slow: its steps take ${figure(pace)} times those of the others`;
  const since_s = isSilent ? silentMs / 1000 : null;
  return { kind: "engine", state, reason, since_s, estimate_s: null };
}

function call(wait: OpenWait, nowMs: number): Waiting {
  const { what, forWhom, reason: why, msMax, sinceMs, isLate } = wait;
  const since_s = (nowMs - sinceMs) / 1000;
  const estimate_s = msMax === null ? null : Math.max(0, msMax / 1000 - since_s);
  const end = estimate_s === null ? "" : `; gives up in ${figure(estimate_s)} s`;
  const reason = `${what} waits for ${forWhom} for ${figure(since_s)} s; ${why}${end}`;
  return { kind: "call", state: isLate ? "slow" : "ok", reason, since_s, estimate_s };
}

const waiters = (count: number): string =>
  count === 1 ? "1 response waits" : `${figure(count)} responses wait`;

/** A number with its significant digits: 8,412; 31; 1.4. */
function figure(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 1 : 0 });
}
