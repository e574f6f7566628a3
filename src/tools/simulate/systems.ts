// The systems that are compared, each as the scheduler that it uses. veRL, divided and Seer are the production
// schedulers as they stand; oracles and baselines differ in the order or the placement alone.

import { present } from "../../core/base/assert.ts";
import type { WorkerId } from "../../core/base/ids.ts";
import type { Request } from "../../core/request/buffer.ts";
import { KeyedPolicy } from "../../core/schedule/keyed.ts";
import {
  isDivided,
  POLICY_NAMES,
  type PolicyName,
  schedulerFor,
} from "../../core/schedule/policies.ts";
import { Scheduler } from "../../core/schedule/scheduler.ts";
import { Heap } from "../../core/wasm/heap.ts";
import type { SchedulerParts } from "./simulation.ts";

/** Baselines of the paper, which draft as they did there, and the order that no system can know. */
const BASELINES = ["verl", "streamrl-oracle", "partial-rollout"] as const;
const ORACLE = "oracle";
/** The paper's own: their chunks have its length. */
const OF_THE_PAPER: readonly string[] = [...BASELINES, "divided", "seer", ORACLE];

/** Policies that divide, each a system of its own name; `group` is what veRL does. */
type Divided = Exclude<PolicyName, "group">;
export type SystemName = (typeof BASELINES)[number] | Divided | typeof ORACLE;

export const SYSTEM_NAMES: readonly SystemName[] = [
  ...BASELINES,
  ...POLICY_NAMES.filter((name): name is Divided => isDivided(name)),
  ORACLE,
];

/**
 * Output tokens of one chunk. The paper's text gives none; 8 K is from notes on its first version. Shorter chunks let the
 * order change more often, and move more KV.
 */
export function chunkTokensOf(system: SystemName): number {
  return isOfThePaper(system) ? 8192 : 2048;
}

export function isOfThePaper(system: SystemName): boolean {
  return OF_THE_PAPER.includes(system);
}

export function isBaseline(system: SystemName): boolean {
  return BASELINES.some((name) => name === system);
}

/** Baselines run whole requests. A partial rollout differs in when it ends (cell.ts). */
export function isDividedSystem(system: SystemName): boolean {
  return !isBaseline(system);
}

export function simSchedulerFor(system: SystemName, parts: SchedulerParts): Scheduler {
  const { buffer, chunks, core, lengthOf } = parts;
  switch (system) {
    case "verl":
    case "partial-rollout":
      return schedulerFor("group", parts);
    case "streamrl-oracle":
      return streamRlOracle(parts);
    case "oracle": {
      // Longest true remaining length first: what no system can know.
      const keyOf = (request: Request) => request.response.length - lengthOf(request);
      const order = new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });
      return new Scheduler(order, { kind: "divided", chunks });
    }
    default:
      return schedulerFor(system, parts);
  }
}

/** StreamRL (2504.15930) calls the longest 20 % the long tail. */
const TAIL_SHARE = 0.2;

function streamRlOracle({ buffer, core, lengthOf }: SchedulerParts): Scheduler {
  const keyOf = (request: Request) => -lengthOf(request);
  const order = new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });
  let places: ReadonlyMap<Request, WorkerId> | null = null;
  return new Scheduler(order, {
    kind: "pinned",
    pin: (request, able) => {
      const workers = able.map(({ workerId }) => workerId);
      places ??= placesOf([...buffer.requests], workers, lengthOf);
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
