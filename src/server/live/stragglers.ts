// Which responses an iteration waits for, and why: how long they are beside their siblings, where they run, and how
// fast.

import type { Request } from "../../core/request/buffer.ts";
import type { Progress } from "../../core/rollout/report.ts";

export interface Straggler {
  readonly request: number;
  readonly group: string;
  readonly index: number;
  readonly length: number;
  /** Of its finished siblings; null: none has finished. */
  readonly siblings_median: number | null;
  /** null: it waits. */
  readonly worker: number | null;
  /** Requests that run beside it on its worker. */
  readonly beside: number;
  /** Since the last look; null: it was not looked at before. */
  readonly tokens_per_s: number | null;
  /** In words, for people. */
  readonly reason: string;
}

const SHOWN_MAX = 5;
/** Ratio to its siblings' median from which a response is called long for its group. */
export const LONG_RATIO = 1.5;

export class Stragglers {
  /** Lengths at the last look. */
  #lengths = new Map<number, number>();
  #atMs = 0;

  /** The unfinished responses with the most tokens, longest first. `nameOf`: of a worker. */
  look(
    requests: Iterable<Request>,
    about: {
      readonly nowMs: number;
      readonly workers: Progress["workers"];
      readonly nameOf: (worker: number) => string;
      readonly acceptanceOf: (worker: number) => number;
      /** What a waiting request waits for, in words. */
      readonly waitsFor: string;
    },
  ): Straggler[] {
    const longest: Request[] = [];
    for (const request of requests) {
      if (request.status === "finished") continue;
      if (longest.length === SHOWN_MAX && request.response.length <= shortestOf(longest)) continue;
      longest.push(request);
      longest.sort((a, b) => b.response.length - a.response.length);
      if (longest.length > SHOWN_MAX) longest.pop();
    }
    const { nowMs } = about;
    const before = this.#lengths;
    const seconds = (nowMs - this.#atMs) / 1000;
    this.#atMs = nowMs;
    this.#lengths = new Map(longest.map(({ spec, response }) => [spec.requestId, response.length]));
    return longest.map((request) => {
      const earlier = before.get(request.spec.requestId);
      const gained = earlier === undefined ? null : request.response.length - earlier;
      const speed = gained === null || seconds <= 0 ? null : Math.max(0, gained) / seconds;
      return stragglerOf(request, speed, about);
    });
  }
}

function shortestOf(longest: readonly Request[]): number {
  return longest.at(-1)?.response.length ?? 0;
}

function stragglerOf(
  request: Request,
  speed: number | null,
  about: {
    readonly workers: Progress["workers"];
    readonly nameOf: (worker: number) => string;
    readonly acceptanceOf: (worker: number) => number;
    readonly waitsFor: string;
  },
): Straggler {
  const { spec, group, response, status, workerId } = request;
  const median = siblingsMedian(group.requests);
  const worker = status === "running" ? workerId : null;
  const on = about.workers.find((one) => one.worker === worker);
  const beside = Math.max(0, (on?.running ?? 0) - 1);
  const parts: string[] = [];
  const ratio = median === null ? null : response.length / Math.max(1, median);
  if (ratio !== null && ratio >= LONG_RATIO) {
    parts.push(`${ratio.toFixed(1)} times its siblings' median`);
  } else if (median === null && group.requests.length > 1) {
    parts.push("no sibling has finished");
  }
  if (worker === null) parts.push(status === "moving" ? "its KV is on the way" : about.waitsFor);
  else {
    const name = about.nameOf(worker);
    parts.push(
      beside === 0
        ? `alone on ${name}`
        : `with ${beside} other${beside === 1 ? "" : "s"} on ${name}`,
    );
    const acceptance = about.acceptanceOf(worker);
    if (acceptance > 1.005) parts.push(`${acceptance.toFixed(1)} tokens a step with drafts`);
  }
  if (response.restarts > 0) parts.push(`restarted ${response.restarts} times`);
  return {
    request: spec.requestId,
    group: spec.groupId,
    index: spec.sampleIndex,
    length: response.length,
    siblings_median: median,
    worker,
    beside,
    tokens_per_s: speed === null ? null : Math.round(speed * 10) / 10,
    reason: parts.join(", "),
  };
}

/** Length of those that are finished. */
export function siblingsMedian(requests: readonly Request[]): number | null {
  const lengths = requests
    .filter(({ status }) => status === "finished")
    .map(({ response }) => response.length)
    .sort((a, b) => a - b);
  return lengths[Math.floor(lengths.length / 2)] ?? null;
}
