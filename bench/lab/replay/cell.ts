// One cell of the lab's comparison: a file and a drafter, replayed as `foretoken replay` does, with what was foreseen.

import { History } from "../../../src/core/draft/history.ts";
import { Replica } from "../../../src/core/draft/replica.ts";
import { cpuClock, ratio, ratioInterval, totalOf } from "../../../src/tools/replay/cell.ts";
import type { TraceGroup } from "../../../src/tools/replay/recordings.ts";
import {
  type LiveResponse,
  type ReplayOptions,
  replay,
  type Tally,
} from "../../../src/tools/replay/replay.ts";
import { type Foreseen, Foresight, type LabDrafter } from "./foresight.ts";

/** A line of the report. */
export type LabCell = Awaited<ReturnType<typeof labCell>>;

type LabCellOptions = Omit<ReplayOptions, "drafter"> & {
  readonly file: string;
  readonly drafter: LabDrafter;
};

export async function labCell(groups: AsyncIterable<TraceGroup>, options: LabCellOptions) {
  const { file, drafter: kind, probabilityMin } = options;
  const history = kind === "history" ? new History() : undefined;
  const replica = new Replica();
  const foresight = new Foresight(replica, kind, history);
  const propose = (live: readonly LiveResponse[]) => foresight.propose(live);
  const drafter = kind === "self" || kind === "history" ? kind : "grouped";
  const host = { drafter: replica, clock: cpuClock, propose, ...(history && { history }) };
  const outcome = await replay(groups, { ...options, drafter }, host);
  const all = outcome.groups.map((tally) => ({ ...tally, ...foresight.of(tally) }));
  const returning = all.filter(({ returns }) => returns);
  return {
    file,
    drafter: kind,
    ...sumOf(all),
    /** Of groups whose prompt an earlier group had; null: there are none. */
    returning: returning.length === 0 ? null : sumOf(returning),
    /** Confidence interval of accepted_plus_1, over groups; null below two groups. */
    ci95: ratioInterval(all),
    /** Expected calibration error of the returned probabilities; null if nothing was drafted. */
    ece: foresight.calibration.error(),
    reliability: foresight.calibration.bins(),
    probability_min: probabilityMin,
    /** Groups that the drafter had no room for; above 0 the figures understate it. */
    full_groups: outcome.fullGroups,
  };
}

type Group = Tally & Foreseen;

function sumOf(groups: readonly Group[]) {
  const sum = (key: keyof Foreseen) => groups.reduce((total, group) => total + group[key], 0);
  const total = totalOf(groups);
  return {
    ...total,
    /** accepted_plus_1, had every draft as many tokens, but those of the drafter `copies`, and of `oracle`. */
    copies_plus_1: 1 + ratio(sum("copied"), total.steps),
    oracle_plus_1: 1 + ratio(sum("followed"), total.steps),
    /** accepted_plus_1 of the steps within the first FIRST_TOKENS of a response. */
    first_plus_1: 1 + ratio(sum("firstAccepted"), sum("firstSteps")),
  };
}

/** Runs of `runEqual`, at most. */
const RUNS_MAX = 12;
/** Numbers of drafted tokens are equal to within this part. */
const TOLERANCE = 0.005;

/**
 * Replays with the least probability at which `wanted` tokens are drafted a step: drafters are compared at equal cost of
 * verification. The cell of the nearest number, where fewer are drafted whatever the probability.
 */
export async function runEqual(
  run: (probabilityMin: number) => Promise<LabCell>,
  wanted: number,
): Promise<LabCell> {
  let best = await run(PROBABILITY_LEAST);
  // Drafted tokens fall with the logarithm of the probability, nearly in a straight line, to none at 1.
  let low = Math.log(PROBABILITY_LEAST);
  let most = best.drafted_per_step;
  let high = 0;
  let least = 0;
  const off = (cell: LabCell) => Math.abs(cell.drafted_per_step / wanted - 1);
  for (let runs = 1; most > wanted && runs < RUNS_MAX && off(best) > TOLERANCE; runs += 1) {
    const part = (most - wanted) / (most - least);
    const ln = low + (high - low) * Math.min(0.9, Math.max(0.1, part));
    const cell = await run(Math.exp(ln));
    if (cell.drafted_per_step > wanted) [low, most] = [ln, cell.drafted_per_step];
    else [high, least] = [ln, cell.drafted_per_step];
    if (off(cell) < off(best)) best = cell;
  }
  return best;
}

/** The core drafts nothing less probable than 1/128. */
const PROBABILITY_LEAST = 1 / 128;
