// A recorded iteration under several policies: what each would have made of the same requests on the same engines.

import type { Timeline } from "../../core/rollout/timeline.ts";
import { type PolicyName, schedulerFor } from "../../core/schedule/policies.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import type { Recorded, RecordedIteration } from "./recording.ts";
import { Simulation } from "./simulation.ts";

/** Results of one policy. The keys are a public format. */
export interface PolicyReport {
  readonly wall_s: number;
  readonly tail_s: number;
  readonly speedup: number;
  readonly idle_share: number;
  readonly preemptions: number;
  readonly recomputed_tokens: number;
  readonly migrations: number;
  readonly migrated_tokens: number;
  readonly output_tokens: number;
  readonly timeline: Timeline;
}

export interface ComparisonReport {
  /** Always true, because these are no measurements of engines. */
  readonly simulated: true;
  readonly recorded: Recorded;
  readonly runs: Readonly<Record<string, PolicyReport>>;
}

/** Simulates the recording under each policy. Speed-ups are over the first. `chunkTokens` null: chosen as in production. */
export async function comparePolicies(
  recording: RecordedIteration,
  options: {
    readonly policies: readonly PolicyName[];
    readonly chunkTokens: number | null;
    readonly core: CoreExports;
  },
): Promise<ComparisonReport> {
  const runs: Record<string, PolicyReport> = {};
  let firstS: number | null = null;
  for (const policy of options.policies) {
    const simulation = new Simulation({
      ...recording,
      core: options.core,
      chunkTokens: options.chunkTokens,
      reportsTokens: true,
      schedulerFor: (parts) => schedulerFor(policy, parts),
      isPaced: true,
    });
    await simulation.run();
    const figures = simulation.figures();
    firstS ??= figures.wallS;
    runs[policy] = {
      wall_s: figures.wallS,
      tail_s: figures.tailS,
      speedup: firstS / figures.wallS,
      idle_share: figures.idleShare,
      preemptions: figures.preemptions,
      recomputed_tokens: figures.recomputedTokens,
      migrations: figures.migrations,
      migrated_tokens: figures.migratedTokens,
      output_tokens: Math.round(figures.outputTokens),
      timeline: simulation.rollout.meter.timeline(),
    };
  }
  return { simulated: true, recorded: recording.recorded, runs };
}
