// The responses that ended last in an iteration, and what their time went into: where they ran, how long they waited,
// how long they were beside their siblings. It says what held the iteration up after it is over.

import type { Request } from "../../core/request/buffer.ts";
import type { Response } from "../../core/request/response.ts";
import { LONG_RATIO, siblingsMedian } from "./stragglers.ts";

export interface LastFinished {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly length: number;
  readonly finish_reason: string | null;
  /** Of its finished siblings; null: it has none. */
  readonly siblings_median: number | null;
  /** How long before the last response of the iteration it ended. */
  readonly before_last_s: number;
  /** From its own beginning to its end; of that, the time in which no worker ran it. */
  readonly seconds: number;
  readonly waited_s: number;
  /** In words, for people. */
  readonly reason: string;
}

const KEPT = 5;
/** Stretches on one worker that a reason names: the last ones. */
const STRETCHES = 3;
/** Share of its time that a response waited, from which that is called a reason. */
const WAITED_SHARE = 0.1;

export class LastFinishedResponses {
  /** In the order of their ends. */
  #requests: Request[] = [];

  /** Another iteration begins. */
  clear(): void {
    this.#requests = [];
  }

  finished(request: Request): void {
    this.#requests.push(request);
    if (this.#requests.length > KEPT) this.#requests.shift();
  }

  /** The last one first. `nameOf`: of a worker. */
  report(nameOf: (worker: number) => string): LastFinished[] {
    const lastMs = this.#requests.at(-1)?.response.finishedMs ?? 0;
    return this.#requests.toReversed().map((request) => {
      const beforeS = (lastMs - (request.response.finishedMs ?? lastMs)) / 1000;
      return reportOf(request, beforeS, nameOf);
    });
  }
}

function reportOf(
  { spec, group, response }: Request,
  beforeS: number,
  nameOf: (worker: number) => string,
): LastFinished {
  const { joinedMs, finishedMs } = response;
  const seconds = Math.max(0, (finishedMs ?? 0) - (joinedMs ?? finishedMs ?? 0)) / 1000;
  const waitedS = Math.max(0, seconds - ranS(response));
  const siblings = group.requests.filter(({ spec: { requestId } }) => requestId !== spec.requestId);
  const median = siblingsMedian(siblings);
  const parts: string[] = [];
  const ratio = median === null ? 0 : response.length / Math.max(1, median);
  if (ratio >= LONG_RATIO) parts.push(`${ratio.toFixed(1)} times its siblings' median`);
  parts.push(`took ${seconds.toFixed(1)} s`);
  if (waitedS > WAITED_SHARE * seconds) parts.push(`${waitedS.toFixed(1)} s of them waiting`);
  if (response.restarts > 0) parts.push(`restarted ${response.restarts} times`);
  parts.push(...stretches(response, nameOf));
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    length: response.length,
    finish_reason: response.finish,
    siblings_median: median,
    before_last_s: rounded(beforeS),
    seconds: rounded(seconds),
    waited_s: rounded(waitedS),
    reason: parts.join(", "),
  };
}

/** Seconds in which a worker ran it; what an earlier process ran has no times. */
function ranS({ chunks, finishedMs }: Response): number {
  let ms = 0;
  for (const { run } of chunks) {
    if (run !== undefined) ms += (run.endMs ?? finishedMs ?? run.startMs) - run.startMs;
  }
  return ms / 1000;
}

function stretches({ chunks }: Response, nameOf: (worker: number) => string): string[] {
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

function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
