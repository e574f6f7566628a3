// A recorded iteration under several policies: what each would have made of the same requests on the same engines.

import type { Timeline } from "../../core/rollout/timeline.ts";
import { type PolicyName, schedulerFor } from "../../core/schedule/policies.ts";
import type { CoreExports } from "../../core/wasm/load.ts";
import type { Recording } from "./recording.ts";
import { Simulation } from "./simulation.ts";

/** Figures of one policy. Its keys are a public format. */
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
  /** Always true: these are no measurements of engines. */
  readonly simulated: true;
  readonly recorded: {
    readonly name: string;
    readonly wall_s: number;
    readonly responses: number;
    readonly unfinished: number;
    readonly engines: number;
    readonly step_ms: number;
    readonly row_ms: number;
    readonly step_error: number;
    readonly tokens_per_step: number;
    readonly moves_kv: boolean;
  };
  readonly runs: Readonly<Record<string, PolicyReport>>;
}

/** Speed-ups are over the first policy. `chunkTokens` null: chosen as in production. */
export async function comparePolicies(
  recording: Recording,
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
  const { name, wallS, groups, engines, stepMs, rowMs, error, tokensPerStep, unfinished } =
    recording;
  return {
    simulated: true,
    recorded: {
      name,
      wall_s: wallS,
      responses: groups.reduce((sum, { lengths }) => sum + lengths.length, 0),
      unfinished,
      engines: engines.length,
      step_ms: stepMs,
      row_ms: rowMs,
      step_error: error,
      tokens_per_step: tokensPerStep,
      moves_kv: recording.movesKv,
    },
    runs,
  };
}
