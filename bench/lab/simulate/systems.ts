// The systems that are compared: of each the scheduler, and what it does with iterations. veRL, divided and Seer are the
// production schedulers as they stand; oracles and baselines differ in the order or the placement alone. A policy that
// divides is a system of its own name; nothing here changes for a new one.

import { present } from "../../../src/core/base/assert.ts";
import type { WorkerId } from "../../../src/core/base/ids.ts";
import type { RolloutRequest } from "../../../src/core/request/buffer.ts";
import { KeyedPolicy } from "../../../src/core/schedule/keyed.ts";
import {
  isDivided,
  POLICY_NAMES,
  type PolicyName,
  schedulerFor,
} from "../../../src/core/schedule/policies.ts";
import { byArrival } from "../../../src/core/schedule/policy.ts";
import { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import { sumOf } from "../../statistics.ts";
import { isolating } from "./isolation.ts";
import type { SchedulerParts } from "./iteration.ts";
import { pinOf, rebalancing } from "./rebalance.ts";
import {
  elastic,
  finishFirst,
  onGraphs,
  partialRollout,
  type Run,
  rlhfuse,
  tailBatching,
} from "./related.ts";

interface System {
  readonly scheduler: (parts: SchedulerParts) => Scheduler;
  /** Whether it runs whole requests, and drafts as the paper's baselines did. */
  readonly isWhole: boolean;
  /** Absent: one iteration as usual. */
  readonly run?: Run;
}

const policy = (name: PolicyName): System => ({
  scheduler: (parts) => schedulerFor(name, parts),
  isWhole: !isDivided(name),
});
const verl = policy("group");
const seer = policy("seer");

/** Ideas of related systems, one row each: APRIL, RollPacker, StreamRL, RLHFuse, TailSieve, CANN, RLBoost. */
const RELATED = {
  /** APRIL and CoPRIS, on whole requests. */
  "partial-rollout": { ...verl, run: partialRollout(Infinity) },
  /** APRIL and CoPRIS on divided rollouts; admission bounds what runs at once. */
  "partial-seer": { ...seer, run: partialRollout(Infinity) },
  /** The same with `max_staleness` 0: carried responses begin anew. */
  "partial-strict": { ...seer, run: partialRollout(0) },
  /** RollPacker's over-sampling: of a quarter more responses to each prompt, the first to finish. */
  "finish-first": { ...seer, run: finishFirst },
  /** RollPacker's tail batching, by what the last epoch's responses show. */
  "tail-batching": { ...seer, run: tailBatching },
  /** StreamRL: long prompts apart, by a ranker that is right about every group. */
  streamrl: { scheduler: (parts) => streamRl(parts, groupMeans(parts.lengthOf)), isWhole: true },
  /** RLHFuse: the last requests move to a few instances, and the others begin the next stage. */
  rlhfuse: { ...verl, run: rlhfuse },
  /** TailSieve: requests of long groups run on engines of their own. */
  isolation: { scheduler: isolating, isWhole: false },
  /** Step times of an engine with graphs, and CANN's re-balance by their sizes. */
  "graphs-verl": { ...verl, run: onGraphs },
  "rebalance-verl": { scheduler: rebalancedVerl, isWhole: true, run: onGraphs },
  "graphs-seer": { ...seer, run: onGraphs },
  "rebalance-seer": {
    scheduler: (parts) => rebalancing(seer.scheduler(parts), parts),
    isWhole: false,
    run: onGraphs,
  },
  /** RLBoost, RobustRL: engines leave, with a notice in which their KV moves to the pool, and others come. */
  elastic: { ...seer, run: elastic(10) },
  /** The same without a notice: what they hold is lost. */
  "elastic-abrupt": { ...seer, run: elastic(0) },
} as const satisfies Record<string, System>;

type Divided = Exclude<PolicyName, "group">;
const divided = POLICY_NAMES.filter((name): name is Divided => isDivided(name));

const SYSTEMS = {
  verl,
  "streamrl-oracle": { scheduler: (parts) => streamRl(parts, parts.lengthOf), isWhole: true },
  ...(Object.fromEntries(divided.map((name) => [name, policy(name)])) as Record<Divided, System>),
  oracle: { scheduler: longestLeft, isWhole: false },
  ...RELATED,
} as const satisfies Record<string, System>;

export type SystemName = keyof typeof SYSTEMS;
const namesOf = <Of extends object>(table: Of) => Object.keys(table) as (keyof Of)[];
export const SYSTEM_NAMES: readonly SystemName[] = namesOf(SYSTEMS);
export const RELATED_NAMES: readonly SystemName[] = namesOf(RELATED);

/** Systems of `--systems all`. */
export const COMPARED: readonly SystemName[] = [
  "verl",
  "streamrl-oracle",
  "partial-rollout",
  ...divided,
  "oracle",
];

export const systemOf = (name: SystemName): System => SYSTEMS[name];

/**
 * Output tokens of one chunk. The paper's text gives none; 8 K is from notes on its first version. Shorter chunks let the
 * order change more often, and move more KV.
 */
export function chunkTokensOf(system: SystemName): number {
  return isOfThePaper(system) ? 8192 : 2048;
}

/** All but `foretoken` are the paper's, or put one idea more on those. */
export function isOfThePaper(system: SystemName): boolean {
  return system !== "foretoken";
}

/** Whether the requests that it finishes are not those of one iteration, or not all: no bound of those holds. */
export const isOtherWork = (system: SystemName): boolean =>
  systemOf(system).run !== undefined && system !== "rlhfuse";

/** Longest true remaining length first: what no system can know. */
function longestLeft(parts: SchedulerParts): Scheduler {
  const keyOf = (request: RolloutRequest) => request.response.length - parts.lengthOf(request);
  const order = new KeyedPolicy(parts, keyOf);
  return new Scheduler(order, { kind: "divided", chunks: parts.chunks });
}

function rebalancedVerl(parts: SchedulerParts): Scheduler {
  const order = new KeyedPolicy(parts, byArrival);
  return rebalancing(new Scheduler(order, { kind: "pinned", pin: pinOf }), parts);
}

/** A ranker that reads prompts alone knows at best the mean of each group. */
function groupMeans(lengthOf: SchedulerParts["lengthOf"]): SchedulerParts["lengthOf"] {
  return ({ group: { requests } }) => sumOf(requests, lengthOf) / requests.length;
}

/** StreamRL (2504.15930) calls the longest 20 % the long tail. */
const TAIL_SHARE = 0.2;

function streamRl(parts: SchedulerParts, lengthOf: SchedulerParts["lengthOf"]): Scheduler {
  const keyOf = (request: RolloutRequest) => -lengthOf(request);
  const order = new KeyedPolicy(parts, keyOf);
  let places: ReadonlyMap<RolloutRequest, WorkerId> | null = null;
  return new Scheduler(order, {
    kind: "pinned",
    pin: (request, able) => {
      const workers = able.map(({ workerId }) => workerId);
      places ??= placesOf([...parts.buffer.requests], workers, lengthOf);
      const workerId = present(places.get(request), "all requests come at once");
      return able.find((slot) => slot.workerId === workerId);
    },
  });
}

function placesOf(
  requests: RolloutRequest[],
  workers: readonly WorkerId[],
  lengthOf: (request: RolloutRequest) => number,
): Map<RolloutRequest, WorkerId> {
  const places = new Map<RolloutRequest, WorkerId>();
  /** Longest first, each to the instance with the fewest tokens so far. */
  const spread = (some: readonly RolloutRequest[], over: readonly WorkerId[]) => {
    const loads = over.map((workerId) => ({ workerId, tokens: 0 }));
    for (const request of some) {
      const least = loads.reduce((a, b) => (b.tokens < a.tokens ? b : a));
      least.tokens += lengthOf(request);
      places.set(request, least.workerId);
    }
  };
  requests.sort((a, b) => lengthOf(b) - lengthOf(a) || a.index - b.index);
  const tail = requests.slice(0, Math.ceil(requests.length * TAIL_SHARE));
  const share = sumOf(tail, lengthOf) / sumOf(requests, lengthOf);
  const wanted = Math.round(share * workers.length);
  const count = Math.max(1, Math.min(workers.length - 1, wanted));
  const own = workers.slice(0, count);
  const others = workers.slice(count);
  spread(others.length === 0 ? requests : tail, own);
  if (others.length > 0) spread(requests.slice(tail.length), others);
  return places;
}
