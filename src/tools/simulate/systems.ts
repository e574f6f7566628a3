// The systems that are compared, each as the scheduler that it uses. veRL, divided and Seer are the production
// schedulers as they stand; oracles and baselines differ in the order or the placement alone.

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
import { streamRlOracle } from "./streamrl-oracle.ts";

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
