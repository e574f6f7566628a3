// The systems that are compared, each as the scheduler that it uses. veRL, divided and Seer are the production
// schedulers as they stand; oracles and baselines differ in the order or the placement alone.

import type { Request } from "../../core/request/buffer.ts";
import { ChunkLength } from "../../core/schedule/chunk-length.ts";
import { KeyedPolicy } from "../../core/schedule/keyed.ts";
import { schedulerFor } from "../../core/schedule/policies.ts";
import { Scheduler } from "../../core/schedule/scheduler.ts";
import { Heap } from "../../core/wasm/heap.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import type { SchedulerParts, SimScheduler } from "./simulation.ts";
import { StreamRlOracle } from "./streamrl-oracle.ts";

export const SYSTEM_NAMES = [
  "verl",
  "streamrl-oracle",
  "partial-rollout",
  "divided",
  "seer",
  "oracle",
  "foretoken",
] as const;
export type SystemName = (typeof SYSTEM_NAMES)[number];

/**
 * Output tokens of one chunk. The paper's text gives none; 8 K is from notes on its first version. Shorter chunks let the
 * order change more often, and move more KV.
 */
export function chunkTokensOf(system: SystemName): number {
  return system === "foretoken" ? 2048 : 8192;
}

export function simSchedulerFor(
  system: SystemName,
  parts: SchedulerParts,
  options: { chunkTokens: number; core: CoreExports },
): SimScheduler {
  const { buffer, context } = parts;
  const { core } = options;
  const chunks = new ChunkLength(options.chunkTokens);
  switch (system) {
    case "verl":
    // What makes a rollout partial is when it ends (experiment.ts), not who runs where.
    case "partial-rollout":
      return schedulerFor("group", { buffer, context, chunks, core });
    case "streamrl-oracle":
      return new StreamRlOracle(parts.lengthOf);
    case "divided":
    case "seer":
    case "foretoken":
      return schedulerFor(system, { buffer, context, chunks, core });
    case "oracle":
      return new Scheduler(oracleOf(parts, core), {
        kind: "divided",
        chunks,
      });
  }
}

/** Longest true remaining length first: what no system can know. */
function oracleOf({ buffer, lengthOf }: SchedulerParts, core: CoreExports): KeyedPolicy {
  const keyOf = (request: Request) => request.response.length - lengthOf(request);
  return new KeyedPolicy({ buffer, heap: new Heap(core), keyOf });
}
