// One cell of the comparison: a file and a drafter. Its result is a line of the report, with its confidence interval and
// the speed-up on an engine of which the step times are known.

import type { Clock } from "../../core/base/clock.ts";
import { History } from "../../core/draft/history.ts";
import { Replica } from "../../core/draft/replica.ts";
import { HeadDrafts, type HeadOptions } from "./head.ts";
import type { TraceGroup } from "./recordings.ts";
import {
  type DrafterKind,
  type LiveResponse,
  type ReplayOptions,
  type ReplayOutcome,
  replay,
  type Tally,
} from "./replay.ts";

/** A line of the report. */
export interface CellResult extends Totals {
  readonly file: string;
  readonly drafter: DrafterKind;
  readonly budget: number;
  /** Drafts of a simulated head; absent: there is none. */
  readonly head?: HeadOptions;
  /** Totals of groups whose prompt an earlier group had; null: there are none. */
  readonly returning: Totals | null;
  /** CPU time in the drafter (append and propose) per output token, in microseconds. */
  readonly us_per_token: number;
  /** 95 % confidence interval of accepted_plus_1 over groups; null below two groups. */
  readonly ci95: readonly [low: number, high: number] | null;
  readonly probability_min: number;
  readonly live: number;
  /** Number of groups that the drafter had no room for; above 0 the figures understate acceptance. */
  readonly full_groups: number;
}

type Totals = ReturnType<typeof totalOf>;

export interface CellOptions extends ReplayOptions {
  readonly file: string;
  readonly head?: HeadOptions;
}

/** CPU time of this thread: other processes on the machine do not count as drafting. */
export const cpuClock: Clock = {
  nowMs: () => {
    const { user, system } = process.threadCpuUsage();
    return (user + system) / 1000;
  },
};

/** Replays `groups` with one drafter. `onRound` is called every round with the number of output tokens so far. */
export async function runCell(
  groups: AsyncIterable<TraceGroup>,
  options: CellOptions,
  onRound: (tokens: number) => void = () => {},
): Promise<CellResult> {
  const history = options.drafter === "history" ? new History() : undefined;
  const drafter = new Replica();
  const head = options.head && new HeadDrafts(drafter, options.head);
  const propose = head && ((live: readonly LiveResponse[]) => head.propose(live));
  const host = { drafter, clock: cpuClock, onRound, ...(history && { history }) };
  return resultOf(options, await replay(groups, options, { ...host, ...(propose && { propose }) }));
}

export function totalOf(groups: readonly Tally[]) {
  const sum = (key: Exclude<keyof Tally, "returns">) =>
    groups.reduce((total, group) => total + group[key], 0);
  const steps = sum("steps");
  const drafted = sum("drafted");
  const accepted = sum("accepted");
  return {
    /** 1 + accepted draft tokens per verification step. */
    accepted_plus_1: 1 + ratio(accepted, steps),
    drafted_per_step: ratio(drafted, steps),
    /** Share of drafted tokens that were accepted; 0 if nothing was drafted. */
    accepted_per_drafted: ratio(accepted, drafted),
    groups: groups.length,
    responses: sum("responses"),
    tokens: sum("tokens"),
    steps,
  };
}

function resultOf(options: CellOptions, outcome: ReplayOutcome): CellResult {
  const { file, drafter, budget, head, live, probabilityMin } = options;
  const total = totalOf(outcome.groups);
  const returning = outcome.groups.filter(({ returns }) => returns);
  return {
    file,
    drafter,
    budget,
    ...(head && { head }),
    ...total,
    us_per_token: ratio(outcome.drafterMs * 1000, total.tokens),
    ci95: ratioInterval(outcome.groups),
    returning: returning.length === 0 ? null : totalOf(returning),
    probability_min: probabilityMin,
    live,
    full_groups: outcome.fullGroups,
  };
}

export function ratio(numerator: number, denominator: number): number {
  return denominator === 0 ? 0 : numerator / denominator;
}

/** Time of an engine's step for a batch, as measured without drafts, and of each further verified token. */
export interface EngineSteps {
  readonly batch: number;
  readonly stepMs: number;
  readonly rowUs: number;
}

type Acceptance = Pick<CellResult, "accepted_plus_1" | "drafted_per_step" | "us_per_token">;

/** Speed-up by drafts: ratio of tokens per second with and without them. Below 1 drafting costs time. */
export function speedUp(result: Acceptance, engine: EngineSteps): number {
  const { accepted_plus_1: tokens, drafted_per_step: drafted, us_per_token: draftUs } = result;
  const { batch, stepMs, rowUs } = engine;
  const verifyMs = (batch * drafted * rowUs) / 1000;
  const draftMs = (batch * tokens * draftUs) / 1000;
  return (tokens * stepMs) / (stepMs + verifyMs + draftMs);
}

/** Standard deviations on either side of the mean that hold 95 % of a normal distribution. */
const DEVIATIONS = 1.96;

/**
 * 95 % interval of 1 + accepted tokens a step over groups, by the linearized variance of a ratio of sums (Cochran, Sampling
 * Techniques, 2.11). null below two groups: one group does not determine others.
 */
export function ratioInterval(
  groups: readonly Pick<Tally, "accepted" | "steps">[],
): readonly [low: number, high: number] | null {
  const counted = groups.filter(({ steps }) => steps > 0);
  const n = counted.length;
  if (n < 2) return null;
  const steps = counted.reduce((sum, group) => sum + group.steps, 0);
  const mean = counted.reduce((sum, group) => sum + group.accepted, 0) / steps;
  const squares = counted.map((group) => (group.accepted - mean * group.steps) ** 2);
  const variance = (squares.reduce((sum, one) => sum + one, 0) * n) / (n - 1);
  const half = (DEVIATIONS * Math.sqrt(variance)) / steps;
  return [1 + mean - half, 1 + mean + half];
}
