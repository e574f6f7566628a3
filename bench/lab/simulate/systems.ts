// The systems that are compared, each as the scheduler that it uses. veRL, divided and Seer are the production
// schedulers as they stand; oracles and baselines differ in the order or the placement alone.
// A policy that divides is a system of its own name, with the paper's chunks; nothing here changes for a new one.

import { present } from "../../../src/core/base/assert.ts";
import type { WorkerId } from "../../../src/core/base/ids.ts";
import type { Request } from "../../../src/core/request/buffer.ts";
import { KeyedPolicy } from "../../../src/core/schedule/keyed.ts";
import {
  isDivided,
  POLICY_NAMES,
  type PolicyName,
  schedulerFor,
} from "../../../src/core/schedule/policies.ts";
import { byArrival } from "../../../src/core/schedule/policy.ts";
import { Scheduler } from "../../../src/core/schedule/scheduler.ts";
import { isolating } from "./isolation.ts";
import type { SchedulerParts } from "./iteration.ts";
import { pinOf, rebalancing } from "./rebalance.ts";
import { baseOf, RELATED_NAMES, type RelatedName } from "./related.ts";

/** Baselines of the paper, which draft as they did there, and the order that no system can know. */
const BASELINES = ["verl", "streamrl-oracle"] as const;
const ORACLE = "oracle";

/** Policies that divide, each a system of its own name; `group` is what veRL does. */
type Divided = Exclude<PolicyName, "group">;
export type SystemName = (typeof BASELINES)[number] | Divided | typeof ORACLE | RelatedName;

/** Systems of `--systems all`. */
export const COMPARED: readonly SystemName[] = [
  ...BASELINES,
  "partial-rollout",
  ...POLICY_NAMES.filter((name): name is Divided => isDivided(name)),
  ORACLE,
];

/** All systems; those of `--systems related` last. */
export const SYSTEM_NAMES: readonly SystemName[] = [...new Set([...COMPARED, ...RELATED_NAMES])];

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

/** Whether it runs whole requests. */
export function isBaseline(system: SystemName): boolean {
  return WHOLE.some((name) => name === baseOf(system));
}
const WHOLE = [...BASELINES, "streamrl", "rebalance-verl"] as const;

export function simSchedulerFor(system: SystemName, parts: SchedulerParts): Scheduler {
  const { chunks, lengthOf } = parts;
  const base = baseOf(system);
  switch (base) {
    case "verl":
      return schedulerFor("group", parts);
    case "streamrl-oracle":
      return streamRl(parts, lengthOf);
    case "streamrl":
      return streamRl(parts, groupMeans(lengthOf));
    case "isolation":
      return isolating(parts);
    case "rebalance-verl": {
      const order = new KeyedPolicy(parts, byArrival);
      return rebalancing(new Scheduler(order, { kind: "pinned", pin: pinOf }), parts);
    }
    case "rebalance-seer":
      return rebalancing(schedulerFor("seer", parts), parts);
    case "oracle": {
      // Longest true remaining length first: what no system can know.
      const keyOf = (request: Request) => request.response.length - lengthOf(request);
      const order = new KeyedPolicy(parts, keyOf);
      return new Scheduler(order, { kind: "divided", chunks });
    }
    default:
      return schedulerFor(base, parts);
  }
}

/** A ranker that reads prompts alone knows at best the mean of each group. */
function groupMeans(lengthOf: SchedulerParts["lengthOf"]): SchedulerParts["lengthOf"] {
  return ({ group: { requests } }) =>
    requests.reduce((sum, one) => sum + lengthOf(one), 0) / requests.length;
}

/** StreamRL (2504.15930) calls the longest 20 % the long tail. */
const TAIL_SHARE = 0.2;

function streamRl(parts: SchedulerParts, lengthOf: SchedulerParts["lengthOf"]): Scheduler {
  const keyOf = (request: Request) => -lengthOf(request);
  const order = new KeyedPolicy(parts, keyOf);
  let places: ReadonlyMap<Request, WorkerId> | null = null;
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
  requests: Request[],
  workers: readonly WorkerId[],
  lengthOf: (request: Request) => number,
): Map<Request, WorkerId> {
  const places = new Map<Request, WorkerId>();
  const tokensOf = (some: readonly Request[]) => some.reduce((sum, one) => sum + lengthOf(one), 0);
  /** Longest first, each to the instance with the fewest tokens so far. */
  const spread = (some: readonly Request[], over: readonly WorkerId[]) => {
    const loads = over.map((workerId) => ({ workerId, tokens: 0 }));
    for (const request of some) {
      const least = loads.reduce((a, b) => (b.tokens < a.tokens ? b : a));
      least.tokens += lengthOf(request);
      places.set(request, least.workerId);
    }
  };
  requests.sort((a, b) => lengthOf(b) - lengthOf(a) || a.index - b.index);
  const tail = requests.slice(0, Math.ceil(requests.length * TAIL_SHARE));
  const rest = requests.slice(tail.length);
  const share = tokensOf(tail) / tokensOf(requests);
  const count = Math.max(1, Math.min(workers.length - 1, Math.round(share * workers.length)));
  if (workers.length === 1) {
    spread(requests, workers);
  } else {
    spread(tail, workers.slice(0, count));
    spread(rest, workers.slice(count));
  }
  return places;
}
