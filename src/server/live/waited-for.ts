// The responses that an iteration waits for, or has waited for, with one reason each: it is long, it waited, or where it runs.

import type { RolloutRequest } from "../../core/request/buffer.ts";
import type { Progress } from "../../core/rollout/report.ts";

interface Waited {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly length: number;
  /** Median length of its finished siblings; null: none has finished. */
  readonly siblings_median: number | null;
  readonly reason: string;
}

export interface OpenResponse extends Waited {
  readonly worker: number | null;
  /** Tokens per second of the running chunk; null: none runs. */
  readonly tokens_per_s: number | null;
}

export interface LastFinished extends Waited {
  readonly finish_reason: string | null;
  /** Time between its end and that of the iteration's last response. */
  readonly before_last_s: number;
  /** Time from its start to its end; `waited_s`: the part of it in which no worker ran it. */
  readonly seconds: number;
  readonly waited_s: number;
}

type NameOf = (worker: number) => string;

const SHOWN_MAX = 5;
/** Ratio to its siblings' median from which a response is far too long; `LONGER_RATIO`: from which its length is the reason. */
export const LONG_RATIO = 8;
const LONGER_RATIO = 1.5;
/** A response that waited for more than this share of its time is reported as having waited. */
const WAITED_SHARE = 0.1;

/** The unfinished responses with the most tokens, longest first. `waitsFor`: what a waiting response waits for. */
export function longestOpen(
  requests: Iterable<RolloutRequest>,
  about: { nowMs: number; workers: Progress["workers"]; nameOf: NameOf; waitsFor: string },
): OpenResponse[] {
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

  /** The responses that finished last, the very last first. */
  report(nameOf: NameOf): LastFinished[] {
    const lastMs = this.#requests.at(-1)?.response.finishedMs ?? 0;
    return this.#requests.toReversed().map((request) => lastFinishedOf(request, lastMs, nameOf));
  }
}

function lastFinishedOf(request: RolloutRequest, lastMs: number, nameOf: NameOf): LastFinished {
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
function waited(request: RolloutRequest, place: string): Waited {
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
