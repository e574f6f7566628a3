// What the server waits for, as lines for people: the iteration for its responses, responses for engines, calls for
// answers. Each says for how long, and what ends it; `verdict` says whether that is as it should be.

import type { EngineClock, Verdict } from "../../core/rollout/progress-clock.ts";
import type { Progress } from "../../core/rollout/report.ts";
import type { Member } from "../../fleet/pool.ts";
import type { OpenWait } from "../../fleet/waits.ts";
import type { ServingState } from "./serving-state.ts";
import type { Straggler } from "./waited-for.ts";

export interface WaitingLine {
  readonly kind: "generation" | "iteration" | "engine" | "call";
  readonly verdict: Verdict;
  readonly line: string;
  /** Time for which it has waited; null: it did not begin at one time. */
  readonly since_s: number | null;
  /** Time until it is given up; null: it has no deadline. */
  readonly deadline_s: number | null;
}

export interface Seen {
  readonly progress: Progress;
  readonly iteration: number;
  readonly state: ServingState;
  readonly stateS: number;
  readonly stragglers: readonly Straggler[];
  /** The wanted number of workers has been ready at the same time. */
  readonly hasStarted: boolean;
  readonly members: readonly Pick<Member, "source" | "workerId" | "state" | "reason" | "record">[];
  readonly clocks: readonly EngineClock[];
  /** Requests that wait in the engine's own queue. */
  readonly queued: (worker: number) => number;
  readonly waits: readonly OpenWait[];
  readonly nameOf: (worker: number) => string;
  readonly nowMs: number;
}

/** Prefix of a group's id before the client's name of it. */
const OWN_NAME = /^g\d+:(rollout-[0-9a-f-]+\/)?/;
/** A response is called long if fewer than this many as long are to be expected in an iteration. */
const EXPECTED_MAX = 1e-6;
/** Ratio to the silence that its engine may keep from which a response counts as silent. */
const SILENCES = 10;

export function waitingLines(seen: Seen): WaitingLine[] {
  const { members, clocks, waits, nowMs } = seen;
  const engines = clocks.filter(({ verdict }) => verdict !== "ok");
  return [
    ...generationLine(seen),
    ...iterationLine(seen),
    ...members.flatMap((member) => memberLine(member)),
    ...engines.map((clock) => engineLine(clock, seen.nameOf(clock.worker))),
    ...waits.map((wait) => waitLine(wait, nowMs)),
  ];
}

function generationLine({ state, stateS, progress, hasStarted }: Seen): WaitingLine[] {
  if (state.state === "serving") return [];
  const open = progress.requests - progress.requestsDone;
  const who = open === 0 ? "no response" : counted(open, "response");
  const line = `${who} wait${open > 1 ? "" : "s"} for ${stateS} s: ${state.state.replace("_", " ")}; ${state.reason}`;
  const verdict = state.state === "no_worker" && hasStarted && open > 0 ? "stuck" : "ok";
  return [{ kind: "generation", verdict, line, since_s: stateS, deadline_s: null }];
}

function iterationLine(seen: Seen): WaitingLine[] {
  const { progress, iteration, stragglers } = seen;
  const [first] = stragglers;
  const { requests, requestsDone, etaS, elapsedS } = progress;
  if (first === undefined) return [];
  const open = requests - requestsDone;
  const problem = problemOf(first, seen);
  const where = first.worker === null ? first.reason : `engine ${first.worker}`;
  const parts = [
    `${open > 1 ? "the longest is " : ""}group ${first.group.replace(OWN_NAME, "")} response ${first.index}`,
    counted(first.length, "token"),
    where,
    ...(first.tokens_per_s === null ? [] : [`${number(first.tokens_per_s)} tokens/s`]),
  ];
  const estimate = etaS === null ? [] : [`estimate ${number(etaS)} s`];
  const facts = [parts.join(", "), ...(problem === null ? [] : [problem]), ...estimate];
  const line = `iteration ${iteration} waits for ${number(open)} of ${number(requests)}: ${facts.join("; ")}`;
  const verdict = problem === null ? "ok" : "slow";
  return [{ kind: "iteration", verdict, line, since_s: elapsedS, deadline_s: null }];
}

/** null: the response is as it should be. */
function problemOf(one: Straggler, { progress, clocks, queued }: Seen): string | null {
  if (one.rarity * progress.requests < EXPECTED_MAX) return `it is ${one.reason}`;
  const engine = clocks.find(({ worker }) => worker === one.worker);
  const { silent_s: silentS } = one;
  if (engine?.verdict !== "ok" || silentS === null || queued(engine.worker) > 0) return null;
  const isSilent = engine.silentMsMax !== null && silentS * 1000 > SILENCES * engine.silentMsMax;
  return isSilent ? `it has got no token for ${number(silentS)} s, while its engine works` : null;
}

/** An engine that has not come yet is being opened: that wait has a line of its own. */
function memberLine({
  source,
  workerId,
  state,
  reason,
  record,
}: Seen["members"][number]): WaitingLine[] {
  if (state === "ready" || state === "leaving" || reason === null) return [];
  if (state === "down" && record.tries === 0) return [];
  const line = `engine ${workerId} (${source.name}) does not serve: ${state}; ${reason}`;
  const verdict = state === "reconnecting" ? "slow" : "stuck";
  return [{ kind: "engine", verdict, line, since_s: null, deadline_s: null }];
}

function engineLine(clock: EngineClock, name: string): WaitingLine {
  const { worker, verdict, doing, running, silentMs, silentMsMax, stepMs, pace } = clock;
  const isSilent = silentMsMax === null || silentMs > silentMsMax;
  const step = stepMs === null ? "it has made no step yet" : `a step takes ${number(stepMs)} ms`;
  const engine = `engine ${worker} (${name})`;
  const line = isSilent
    ? `${counted(running, "response")} wait${running === 1 ? "s" : ""} for ${engine}: no token or step for ${number(silentMs / 1000)} s (${doing}); ${step}`
    : `${engine} is slow: its steps take ${number(pace)} times those of the others`;
  const since_s = isSilent ? silentMs / 1000 : null;
  return { kind: "engine", verdict, line, since_s, deadline_s: null };
}

function waitLine(
  { what, forWhom, reason, msMax, sinceMs, isLate }: OpenWait,
  nowMs: number,
): WaitingLine {
  const since_s = (nowMs - sinceMs) / 1000;
  const deadline_s = msMax === null ? null : Math.max(0, msMax / 1000 - since_s);
  const end = deadline_s === null ? "" : `; gives up in ${number(deadline_s)} s`;
  const line = `${what} waits for ${forWhom} for ${number(since_s)} s; ${reason}${end}`;
  return { kind: "call", verdict: isLate ? "slow" : "ok", line, since_s, deadline_s };
}

function counted(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Digits that matter: 8,412; 31; 1.4. */
function number(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 1 : 0 });
}
