// One cell of the comparison: a file, a drafter, a mode, a number of siblings. Its result is a line of the report.

import type { Clock } from "../../core/base/clock.ts";
import { Replica } from "../../core/draft/replica.ts";
import { bootstrapRatio } from "./bootstrap.ts";
import type { ReliabilityBin } from "./calibration.ts";
import type { TraceGroup } from "./recordings.ts";
import {
  type DrafterKind,
  type ReplayMode,
  type ReplayOptions,
  type ReplayOutcome,
  replay,
  type Tally,
} from "./replay.ts";

/** A line of the report. */
export interface CellResult {
  readonly file: string;
  readonly drafter: DrafterKind;
  readonly mode: ReplayMode;
  /** As asked for; if all were, the most that a response has. */
  readonly siblings: number;
  readonly budget: number;
  /** 1 + accepted draft tokens a verification step. */
  readonly accepted_plus_1: number;
  readonly drafted_per_step: number;
  /** 0 if nothing was drafted. */
  readonly accepted_per_drafted: number;
  /** CPU time in the drafter for each output token: append and propose. */
  readonly us_per_token: number;
  /** Of accepted_plus_1, over groups; null below two groups. */
  readonly ci95: readonly [low: number, high: number] | null;
  /** Expected calibration error of the returned probabilities; null if nothing was drafted. */
  readonly ece: number | null;
  readonly reliability: readonly ReliabilityBin[];
  readonly probability_min: number;
  readonly live: number;
  readonly groups: number;
  readonly responses: number;
  readonly tokens: number;
  readonly steps: number;
  /** Groups that the drafter had no room for; above 0 the figures understate it. */
  readonly full_groups: number;
}

export interface CellOptions extends ReplayOptions {
  readonly file: string;
}

/** CPU time of this thread: other processes on the machine do not count as drafting. */
export const cpuClock: Clock = {
  nowMs: () => {
    const { user, system } = process.threadCpuUsage();
    return (user + system) / 1000;
  },
};

/** Replays `groups`. `onRound` is called with the number of output tokens, every round. */
export async function runCell(
  groups: AsyncIterable<TraceGroup>,
  options: CellOptions,
  onRound: (tokens: number) => void = () => {},
): Promise<CellResult> {
  const host = { drafter: new Replica(), clock: cpuClock, onRound };
  return resultOf(options, await replay(groups, options, host));
}

function totalOf(groups: readonly Tally[]): Tally {
  const total = { responses: 0, tokens: 0, steps: 0, drafted: 0, accepted: 0 };
  for (const group of groups) {
    total.responses += group.responses;
    total.tokens += group.tokens;
    total.steps += group.steps;
    total.drafted += group.drafted;
    total.accepted += group.accepted;
  }
  return total;
}

function resultOf(options: CellOptions, outcome: ReplayOutcome): CellResult {
  const { file, drafter, mode, siblings, budget, live, probabilityMin } = options;
  const total = totalOf(outcome.groups);
  const responsesMost = outcome.groups.reduce((most, group) => Math.max(most, group.responses), 1);
  const shares = outcome.groups.map(({ accepted, steps }) => ({
    numerator: accepted + steps,
    denominator: steps,
  }));
  return {
    file,
    drafter,
    mode,
    siblings: siblings ?? responsesMost - 1,
    budget,
    accepted_plus_1: 1 + ratio(total.accepted, total.steps),
    drafted_per_step: ratio(total.drafted, total.steps),
    accepted_per_drafted: ratio(total.accepted, total.drafted),
    us_per_token: ratio(outcome.drafterMs * 1000, total.tokens),
    ci95: bootstrapRatio(shares),
    ece: outcome.calibration.error(),
    reliability: outcome.calibration.bins(),
    probability_min: probabilityMin,
    live,
    groups: outcome.groups.length,
    responses: total.responses,
    tokens: total.tokens,
    steps: total.steps,
    full_groups: outcome.fullGroups,
  };
}

function ratio(numerator: number, denominator: number): number {
  return denominator === 0 ? 0 : numerator / denominator;
}
