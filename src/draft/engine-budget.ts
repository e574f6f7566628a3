// How many draft tokens an engine with the plugin may verify in one step. The engine measures its
// own break-even acceptance; this decides from what the engine reports and from the whole rollout: where nothing may
// be drafted, and where drafts would take the last KV.

import { STEP_TOKENS_UNBOUNDED } from "./service/limits.ts";

/**
 * Engines set KV aside for a step's drafts before it begins. With KV nearly used up that preempts requests, which costs
 * a whole prefill: from the first share on drafts become fewer, from the second on there are none.
 */
export const KV_USAGE_SCARCE = 0.9;
export const KV_USAGE_FULL = 0.98;
/** Where KV is scarce, each running request may still have this many, less as it gets scarcer. */
const REQUEST_TOKENS_SCARCE = 8;

export interface EngineState {
  readonly isLossless: boolean;
  readonly running: number;
  /** Share of the KV in use, 0 to 1; null: not known. */
  readonly kvUsage: number | null;
}

/** Draft tokens of one step, all requests together: 0 to STEP_TOKENS_UNBOUNDED. */
export function stepTokens(engine: EngineState): number {
  if (!engine.isLossless) return 0;
  const usage = engine.kvUsage ?? 0;
  if (usage < KV_USAGE_SCARCE) return STEP_TOKENS_UNBOUNDED;
  const left = Math.max(0, KV_USAGE_FULL - usage) / (KV_USAGE_FULL - KV_USAGE_SCARCE);
  return Math.round(left * REQUEST_TOKENS_SCARCE * engine.running);
}
