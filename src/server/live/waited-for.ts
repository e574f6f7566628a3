// Which responses an iteration waits for, or has waited for, and why: how long they are beside their siblings, where they
// run, how fast, and how long they waited.

import type { Request } from "../../core/request/buffer.ts";
import type { Response } from "../../core/request/response.ts";
import type { Progress } from "../../core/rollout/report.ts";
import { rounded } from "./samples.ts";

interface Waited {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly length: number;
  /** Median length of its finished siblings; null: none has finished. */
  readonly siblings_median: number | null;
  /** Reason in words, for people. */
  readonly reason: string;
}

export interface Straggler extends Waited {
  readonly worker: number | null;
  /** Requests that run beside it on its worker. */
  readonly beside: number;
  /** Rate of the chunk that runs, and time since its last token; null: none runs. */
  readonly tokens_per_s: number | null;
  readonly silent_s: number | null;
  /** Probability that a response of its group gets as long: see TimeLeft. */
  readonly rarity: number;
}

export interface LastFinished extends Waited {
  readonly finish_reason: string | null;
  /** How long before the last response of the iteration it ended. */
  readonly before_last_s: number;
  /** Time from its start to its end; of that, the time in which no worker ran it. */
  readonly seconds: number;
  readonly waited_s: number;
}

type NameOf = (worker: number) => string;

interface Look {
  readonly nowMs: number;
  readonly workers: Progress["workers"];
  readonly nameOf: NameOf;
  readonly acceptanceOf: (worker: number) => number;
  readonly rarityOf: (request: Request) => number;
  /** Reason why a waiting request waits, in words. */
  readonly waitsFor: string;
}

const SHOWN_MAX = 5;
/** Ratio to its siblings' median from which a response is called long for its group. */
const LONG_RATIO = 1.5;
/** Stretches on one worker that a reason names: the last ones. */
const STRETCHES = 3;
/** Share of its time that a response waited, from which that is called a reason. */
const WAITED_SHARE = 0.1;

/** The unfinished responses with the most tokens, longest first. */
export function stragglersOf(requests: Iterable<Request>, about: Look): Straggler[] {
  return longestOf(requests).map((request) => stragglerOf(request, about));
}

function longestOf(requests: Iterable<Request>): Request[] {
  const longest: Request[] = [];
  for (const request of requests) {
    const shortest = longest.at(SHOWN_MAX - 1)?.response.length ?? -1;
    if (request.status === "finished" || request.response.length <= shortest) continue;
    longest.push(request);
    longest.sort((a, b) => b.response.length - a.response.length);
    if (longest.length > SHOWN_MAX) longest.pop();
  }
  return longest;
}

function stragglerOf(request: Request, about: Look): Straggler {
  const { group, status, workerId } = request;
  const worker = status === "running" ? workerId : null;
  const on = about.workers.find((one) => one.worker === worker);
  const beside = Math.max(0, (on?.running ?? 0) - 1);
  const parts: string[] = [];
  const isFirst = siblingsMedian(request) === null && group.requests.length > 1;
  if (isFirst) parts.push("no sibling has finished");
  if (worker === null) parts.push(status === "moving" ? "its KV is on the way" : about.waitsFor);
  else {
    const others = `with ${beside} other${beside === 1 ? "" : "s"}`;
    parts.push(`${beside === 0 ? "alone" : others} on ${about.nameOf(worker)}`);
    const acceptance = about.acceptanceOf(worker);
    if (acceptance > 1.005) parts.push(`${acceptance.toFixed(1)} tokens a step with drafts`);
  }
  parts.push(...restartsOf(request));
  const chunk = worker === null ? null : request.response.chunks.at(-1);
  const { startMs = about.nowMs } = chunk?.run ?? {};
  const seconds = (about.nowMs - startMs) / 1000;
  const speed =
    chunk == null || seconds <= 0 ? null : Math.round((10 * chunk.tokens) / seconds) / 10;
  const saidMs = Math.max(startMs, request.response.lastTokenMs ?? 0);
  return {
    ...{ ...waited(request, parts), worker, beside },
    tokens_per_s: speed,
    silent_s: chunk == null ? null : rounded((about.nowMs - saidMs) / 1000),
    rarity: about.rarityOf(request),
  };
}

export class LastFinishedResponses {
  #requests: Request[] = [];

  clear(): void {
    this.#requests = [];
  }

  finished(request: Request): void {
    this.#requests = [...this.#requests, request].slice(-SHOWN_MAX);
  }

  /** The last one first. */
  report(nameOf: NameOf): LastFinished[] {
    const lastMs = this.#requests.at(-1)?.response.finishedMs ?? 0;
    return this.#requests.toReversed().map((request) => lastFinishedOf(request, lastMs, nameOf));
  }
}

function lastFinishedOf(request: Request, lastMs: number, nameOf: NameOf): LastFinished {
  const { joinedMs, finishedMs, finish, chunks } = request.response;
  const seconds = Math.max(0, (finishedMs ?? 0) - (joinedMs ?? finishedMs ?? 0)) / 1000;
  // What an earlier process ran has no times.
  const ranMs = chunks.reduce((ms, { run }) => {
    return run === undefined ? ms : ms + (run.endMs ?? finishedMs ?? run.startMs) - run.startMs;
  }, 0);
  const waitedS = Math.max(0, seconds - ranMs / 1000);
  const parts = [`took ${seconds.toFixed(1)} s`];
  if (waitedS > WAITED_SHARE * seconds) parts.push(`${waitedS.toFixed(1)} s of them waiting`);
  parts.push(...restartsOf(request), ...stretches(request.response, nameOf));
  return {
    ...waited(request, parts),
    finish_reason: finish,
    before_last_s: rounded((lastMs - (finishedMs ?? lastMs)) / 1000),
    seconds: rounded(seconds),
    waited_s: rounded(waitedS),
  };
}

function stretches({ chunks }: Response, nameOf: NameOf): string[] {
  const all: { worker: number; from: number; to: number }[] = [];
  for (const { workerId, offset, tokens } of chunks) {
    const last = all.at(-1);
    if (last?.worker === workerId) last.to = offset + tokens;
    else all.push({ worker: workerId, from: offset, to: offset + tokens });
  }
  if (all.length === 1) return all.map(({ worker }) => `on ${nameOf(worker)}`);
  return all
    .slice(-STRETCHES)
    .map(({ worker, from, to }) => `tokens ${from} to ${to} on ${nameOf(worker)}`);
}

function restartsOf({ response: { restarts } }: Request): string[] {
  return restarts > 0 ? [`restarted ${restarts} times`] : [];
}

/** `reasons`: beside its length. */
function waited(request: Request, reasons: readonly string[]): Waited {
  const { spec, response } = request;
  const median = siblingsMedian(request);
  const ratio = median === null ? 0 : response.length / Math.max(1, median);
  const long = ratio >= LONG_RATIO ? [`${ratio.toFixed(1)} times its siblings' median`] : [];
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    length: response.length,
    siblings_median: median,
    reason: [...long, ...reasons].join(", "),
  };
}

function siblingsMedian(request: Request): number | null {
  const lengths = request.group.requests
    .filter((one) => one !== request && one.status === "finished")
    .map(({ response }) => response.length)
    .sort((a, b) => a - b);
  return lengths[Math.floor(lengths.length / 2)] ?? null;
}
