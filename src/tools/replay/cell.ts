// One cell of the comparison: a file, a drafter, a mode, a number of siblings; replayed at a threshold,
// or at the threshold that drafts the wanted number of tokens. Its result is a line of the report.

import type { Clock } from "../../core/base/clock.ts";
import type { Drafter } from "../../core/draft/drafter.ts";
import { bootstrapRatio } from "./bootstrap.ts";
import type { ReliabilityBin } from "./calibration.ts";
import {
  type DrafterKind,
  type ReplayMode,
  type ReplayOptions,
  type ReplayOutcome,
  replay,
  type Tally,
} from "./replay.ts";
import type { TraceSource } from "./source.ts";
import { bisect, type Found, refine } from "./threshold.ts";
import type { TraceGroup } from "./trace.ts";

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
  /** null: the threshold was given. */
  readonly drafted_per_step_wanted: number | null;
  readonly live: number;
  readonly groups: number;
  readonly responses: number;
  readonly tokens: number;
  readonly steps: number;
  /** Groups that the drafter had no room for; above 0 the figures understate it. */
  readonly full_groups: number;
}

export interface CellOptions {
  readonly file: string;
  readonly drafter: DrafterKind;
  readonly mode: ReplayMode;
  /** null: all. */
  readonly siblings: number | null;
  readonly budget: number;
  readonly live: number;
  readonly threshold: Threshold;
}

export type Threshold =
  | { readonly kind: "given"; readonly probabilityMin: number }
  | { readonly kind: "drafted"; readonly perStep: number };

export interface CellHost {
  /** A drafter that has seen nothing. */
  readonly newDrafter: () => Drafter;
  /** Measures the drafter: best a clock of CPU time, which does not see what else the machine does. */
  readonly clock: Clock;
  /** Called with the number of output tokens of the current replay, every round. */
  readonly onRound?: (pass: Pass, tokens: number) => void;
}

/** sampling: looking for the threshold on part of the groups. */
export type Pass = "sampling" | "replaying";

/** Drafters are compared within 0.5 % of the wanted cost, which is about 0.1 % of accepted + 1. */
const TOLERANCE = 0.005;
/** 2^-10 of the range of ln(threshold) is a change of 0.6 %. */
const SAMPLE_RUNS_MAX = 11;
const WHOLE_RUNS_MAX = 6;
/** The sample has an eighth of the groups, and no fewer than live at a time if there are as many. */
const SAMPLE_STRIDE_MAX = 8;

export async function runCell(
  source: TraceSource,
  options: CellOptions,
  host: CellHost,
): Promise<CellResult> {
  const { threshold } = options;
  if (threshold.kind === "given") {
    const run = new Runs(options, host);
    await run.at(threshold.probabilityMin, source.groups(), "replaying");
    return resultOf(options, threshold.probabilityMin, run.outcome());
  }
  const wanted = { wanted: threshold.perStep, tolerance: TOLERANCE };
  const stride = await strideOf(source, options.live);
  const sampled = new Runs(options, host);
  const start = await bisect(
    (p) => sampled.at(p, source.sample(stride), stride === 1 ? "replaying" : "sampling"),
    { ...wanted, runsMax: SAMPLE_RUNS_MAX },
  );
  const whole = new Runs(options, host);
  const found: Found = await refine((p) => whole.at(p, source.groups(), "replaying"), start, {
    ...wanted,
    runsMax: stride === 1 ? 1 : WHOLE_RUNS_MAX,
  });
  return resultOf(options, found.probabilityMin, whole.outcome(found.probabilityMin));
}

async function strideOf(source: TraceSource, live: number): Promise<number> {
  let groups = 0;
  for await (const _ of source.groups()) groups += 1;
  return Math.max(1, Math.min(SAMPLE_STRIDE_MAX, Math.floor(groups / live)));
}

/** The replays of one cell, by their threshold. */
class Runs {
  readonly #options: CellOptions;
  readonly #host: CellHost;
  readonly #outcomes = new Map<number, ReplayOutcome>();
  #last = Number.NaN;

  constructor(options: CellOptions, host: CellHost) {
    this.#options = options;
    this.#host = host;
  }

  /** Replays; returns the tokens drafted a step. */
  async at(probabilityMin: number, groups: AsyncIterable<TraceGroup>, pass: Pass): Promise<number> {
    const { newDrafter, clock, onRound } = this.#host;
    const options: ReplayOptions = { ...this.#options, probabilityMin };
    const outcome = await replay(groups, options, {
      drafter: newDrafter(),
      clock,
      onRound: (tokens) => onRound?.(pass, tokens),
    });
    this.#outcomes.set(probabilityMin, outcome);
    this.#last = probabilityMin;
    const { drafted, steps } = totalOf(outcome.groups);
    return steps === 0 ? 0 : drafted / steps;
  }

  outcome(probabilityMin = this.#last): ReplayOutcome {
    const outcome = this.#outcomes.get(probabilityMin);
    if (outcome === undefined) throw new Error("no replay at this threshold");
    return outcome;
  }
}

export function totalOf(groups: readonly Tally[]): Tally {
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

function resultOf(
  options: CellOptions,
  probabilityMin: number,
  outcome: ReplayOutcome,
): CellResult {
  const { file, drafter, mode, siblings, budget, live, threshold } = options;
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
    drafted_per_step_wanted: threshold.kind === "drafted" ? threshold.perStep : null,
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
