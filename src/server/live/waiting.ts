// What the server waits for: whether tokens are generated at all, the responses that an iteration waits for or has waited
// for, with one reason each, and rows for the page and /v1/waiting: a state, a reason in words, and an estimate of the time
// until it ends.

import type { OpenWait, WaitName } from "../../core/base/waits.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { Progress } from "../../core/rollout/meter.ts";
import type { EngineClock, WaitState } from "../../core/rollout/progress-clock.ts";
import type { Member } from "../../fleet/engines.ts";
import type { WorkerPool } from "../../fleet/pool.ts";
import type { Sidecar } from "../sidecar.ts";

export const SERVING_STATES = [
  "serving",
  "paused",
  "sleeping",
  "updating",
  "draining",
  "no_worker",
] as const;
export type ServingStateName = (typeof SERVING_STATES)[number];

export interface ServingState {
  readonly state: ServingStateName;
  /** Reason for not serving; null: the server serves. */
  readonly reason: string | null;
}

export interface Weights {
  readonly isUpdating: boolean;
  readonly isAsleep: boolean;
  pauseState(): { readonly is_paused: boolean; readonly reason: string | null };
}

export function servingState(parts: {
  sidecar: Pick<Sidecar, "isDraining">;
  pool: Pick<WorkerPool, "members">;
  weights: Weights;
}): ServingState {
  const { sidecar, pool, weights } = parts;
  const { is_paused: isPaused, reason } = weights.pauseState();
  if (sidecar.isDraining) {
    return { state: "draining", reason: "it takes no new requests and ends when all are finished" };
  }
  if (weights.isUpdating) return { state: "updating", reason };
  if (weights.isAsleep) {
    return {
      state: "sleeping",
      reason: "POST /sleep freed the engines' memory; POST /wake_up ends it",
    };
  }
  if (isPaused) return { state: "paused", reason: `${reason}; POST /resume ends it` };
  const { members } = pool;
  if (members.some(({ state }) => state === "ready")) return { state: "serving", reason: null };
  const named = members.map(({ source, state }) => `${source.name} is ${state}`).join(", ");
  return { state: "no_worker", reason: named === "" ? "no worker was added" : named };
}

type OpenResponse = ReturnType<typeof longestOpen>[number];
export type LastFinished = ReturnType<typeof lastFinishedOf>;
type NameOf = (worker: number) => string;

const SHOWN_MAX = 5;
/** Ratio to its siblings' median from which a response is far too long; `LONGER_RATIO`: from which its length is the reason. */
const LONG_RATIO = 8;
const LONGER_RATIO = 1.5;
/** A response that waited for more than this share of its time is reported as having waited. */
const WAITED_SHARE = 0.1;

/** The unfinished responses with the most tokens, longest first. `waitsFor`: what a waiting response waits for. */
export function longestOpen(
  requests: Iterable<RolloutRequest>,
  about: { nowMs: number; workers: Progress["workers"]; nameOf: NameOf; waitsFor: string },
) {
  const { nowMs, workers, nameOf, waitsFor } = about;
  return longestOf(requests).map((request) => {
    const { status, workerId, response } = request;
    const worker = status === "running" ? workerId : null;
    const chunk = worker === null ? null : response.chunks.at(-1);
    const seconds = (nowMs - (chunk?.run?.startMs ?? nowMs)) / 1000;
    const speed = chunk == null || seconds <= 0 ? null : chunk.tokens / seconds;
    const beside = (workers.find((one) => one.worker === worker)?.running ?? 1) - 1;
    const others = beside > 0 ? `with ${beside} other${beside === 1 ? "" : "s"}` : "alone";
    const moving = status === "moving" ? "its KV is on the way" : waitsFor;
    const place = worker === null ? moving : `it runs ${others} on ${nameOf(worker)}`;
    const tokens_per_s = speed === null ? null : Math.round(10 * speed) / 10;
    return { ...waited(request, place), worker, tokens_per_s };
  });
}

function longestOf(requests: Iterable<RolloutRequest>): RolloutRequest[] {
  const longest: RolloutRequest[] = [];
  for (const request of requests) {
    const shortest = longest.at(SHOWN_MAX - 1)?.response.length ?? -1;
    if (request.status === "finished" || request.response.length <= shortest) continue;
    longest.push(request);
    longest.sort((a, b) => b.response.length - a.response.length);
    if (longest.length > SHOWN_MAX) longest.pop();
  }
  return longest;
}

export class LastFinishedResponses {
  #requests: RolloutRequest[] = [];

  clear(): void {
    this.#requests = [];
  }

  finished(request: RolloutRequest): void {
    this.#requests = [...this.#requests, request].slice(-SHOWN_MAX);
  }

  report(nameOf: NameOf): LastFinished[] {
    const lastMs = this.#requests.at(-1)?.response.finishedMs ?? 0;
    return this.#requests.toReversed().map((request) => lastFinishedOf(request, lastMs, nameOf));
  }
}

/** `before_last_s`: between its end and that of the last response. `waited_s`: time in which no worker ran it. */
function lastFinishedOf(request: RolloutRequest, lastMs: number, nameOf: NameOf) {
  const { joinedMs, finishedMs, finish, chunks } = request.response;
  const seconds = Math.max(0, (finishedMs ?? 0) - (joinedMs ?? finishedMs ?? 0)) / 1000;
  // What an earlier process ran has no times.
  const ranMs = chunks.reduce((ms, { run }) => {
    return run === undefined ? ms : ms + (run.endMs ?? finishedMs ?? run.startMs) - run.startMs;
  }, 0);
  const waitedS = Math.max(0, seconds - ranMs / 1000);
  const names = [...new Set(chunks.map(({ workerId }) => nameOf(workerId)))].join(", ");
  const isLate = waitedS > WAITED_SHARE * seconds;
  const time = isLate ? `, ${waitedS.toFixed(1)} s of them waiting` : ` on ${names}`;
  return {
    ...waited(request, `it took ${seconds.toFixed(1)} s${time}`),
    finish_reason: finish,
    before_last_s: rounded((lastMs - (finishedMs ?? lastMs)) / 1000),
    seconds: rounded(seconds),
    waited_s: rounded(waitedS),
  };
}

/** `place`: the reason given for a response that is not long and was not restarted. */
function waited(request: RolloutRequest, place: string) {
  const { spec, response } = request;
  const median = siblingsMedian(request);
  const ratio = median === null ? 0 : response.length / Math.max(1, median);
  const again = response.restarts > 0 ? `it was restarted ${response.restarts} times` : place;
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    length: response.length,
    siblings_median: median,
    reason: ratio < LONGER_RATIO ? again : `it is ${ratio.toFixed(1)} times its siblings' median`,
  };
}

function siblingsMedian(request: RolloutRequest): number | null {
  const lengths = request.group.requests
    .filter((one) => one !== request && one.status === "finished")
    .map(({ response }) => response.length)
    .sort((a, b) => a - b);
  return lengths[Math.floor(lengths.length / 2)] ?? null;
}

/** Seconds, rounded to milliseconds. */
export function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}

export interface Waiting {
  readonly kind: "generation" | "iteration" | "engine" | "call";
  /** The row of ARCHITECTURE.md's table *Where a request waits*; null: another wait. */
  readonly name: WaitName | null;
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

function row(
  kind: Waiting["kind"],
  state: WaitState,
  reason: string,
  more: Partial<Pick<Waiting, "name" | "since_s" | "estimate_s">> = {},
): Waiting {
  return { kind, name: null, state, reason, since_s: null, estimate_s: null, ...more };
}

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
  return [row("generation", state, why, { since_s: stateS })];
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
  const times = { since_s: elapsedS, estimate_s: etaS };
  return [row("iteration", isLong ? "slow" : "ok", parts.join("; "), times)];
}

/** The wait for an engine that is away; one that has not come yet is being opened, which has a row of its own. */
function away({ source, workerId, state, reason: why, record }: Seen["members"][number]) {
  if (state === "ready" || state === "leaving" || why === null) return [];
  if (state === "down" && record.tries === 0) return [];
  const reason = `engine ${workerId} (${source.name}) does not serve: ${state}; ${why}`;
  return [row("engine", state === "reconnecting" ? "slow" : "stuck", reason)];
}

function engine(clock: EngineClock, name: string): Waiting {
  const { worker, state, doing, running, silentMs, isSilent, stepMs, pace } = clock;
  const step = stepMs === null ? "it has made no step yet" : `a step takes ${figure(stepMs)} ms`;
  const who = `engine ${worker} (${name})`;
  const reason = isSilent
    ? `${waiters(running)} for ${who}: no token or step for ${figure(silentMs / 1000)} s (${doing}); ${step}`
    : `${who} is slow: its steps take ${figure(pace)} times those of the others`;
  return row("engine", state, reason, { since_s: isSilent ? silentMs / 1000 : null });
}

/** Share of its bound after which a wait is late; and the time of one without a bound, ms. */
const LATE_SHARE = 0.5;
const LATE_MS = 60_000;

function call(wait: OpenWait, nowMs: number): Waiting {
  const { name = null, what, forWhom, reason: why, msMax, sinceMs } = wait;
  const isLate = nowMs - sinceMs > (msMax === null ? LATE_MS : msMax * LATE_SHARE);
  const since_s = (nowMs - sinceMs) / 1000;
  const estimate_s = msMax === null ? null : Math.max(0, msMax / 1000 - since_s);
  const end = estimate_s === null ? "" : `; gives up in ${figure(estimate_s)} s`;
  const reason = `${what} waits for ${forWhom} for ${figure(since_s)} s; ${why}${end}`;
  return row("call", isLate ? "slow" : "ok", reason, { name, since_s, estimate_s });
}

const waiters = (count: number): string =>
  count === 1 ? "1 response waits" : `${figure(count)} responses wait`;

/** A number with its significant digits: 8,412; 31; 1.4. */
function figure(value: number): string {
  return value.toLocaleString("en-US", { maximumFractionDigits: value < 10 ? 1 : 0 });
}
