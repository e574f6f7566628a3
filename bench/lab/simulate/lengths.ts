// Response lengths: how long each response of each group will be. The shape within and between groups
// comes from real traces (as aggregates: no length of a trace is stored here), the scale from the workload.

import { AppError } from "../../../src/core/base/errors.ts";
import { Random } from "../../../test/suite/random.ts";
import { meanOf } from "../../statistics.ts";

/** lengths[group][sample], output tokens >= 1. */
export type GroupLengths = readonly (readonly number[])[];

/**
 * Quantiles of the group means of log length, in units of their standard deviation, averaged over three sets
 * of long reasoning traces (42 x 10, 50 x 32 and 519 x 3 responses).
 */
const PROBABILITIES = [
  0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995,
];
const BETWEEN = [
  -1.91, -1.76, -1.49, -1.21, -0.87, -0.58, -0.41, -0.17, 0.13, 0.6, 0.95, 1.49, 1.74, 2.16, 2.23,
];
/** Quantiles of a group's own standard deviation over the pooled one: groups disagree by different amounts. */
const SPREAD = [
  0.14, 0.17, 0.25, 0.35, 0.43, 0.5, 0.6, 0.7, 0.83, 0.97, 1.14, 1.4, 1.81, 2.69, 3.24,
];
/** Standard deviation of log length: mean of 0.81, 1.04 and 1.01. (Correlation within groups: 0.71, 0.83 and 0.80.) */
export const TRACE_SPREAD = 0.95;

export interface LengthShape {
  readonly groups: number;
  readonly groupSize: number;
  readonly tokensMax: number;
  /** Mean of the samples, the cap applied. */
  readonly tokensMean: number;
  /** Standard deviation of log length. */
  readonly spread: number;
  readonly correlation: number;
}

/** Draws the lengths of one iteration. Deterministic in `seed`; the mean is met exactly in expectation. */
export function sampleLengths(shape: LengthShape, seed: number): GroupLengths {
  const random = new Random(seed, "lengths");
  const between = Math.sqrt(shape.correlation) * shape.spread;
  const within = Math.sqrt(1 - shape.correlation) * shape.spread;
  const deviations = Array.from({ length: shape.groups }, () => {
    const centre = between * quantile(BETWEEN, random.uniform());
    const own = (within * quantile(SPREAD, random.uniform())) / SPREAD_RMS;
    return Array.from({ length: shape.groupSize }, () => centre + own * random.normal());
  });
  return scaled(deviations, shape);
}

/** Scales exp(deviations) so that, capped at tokensMax, their mean is tokensMean. */
function scaled(deviations: readonly (readonly number[])[], shape: LengthShape): GroupLengths {
  const { tokensMax, tokensMean } = shape;
  if (tokensMean >= tokensMax) {
    throw new AppError(
      "invalid_field",
      `mean length ${tokensMean} is not below the maximum ${tokensMax}`,
    );
  }
  const all = Float64Array.from(deviations.flat());
  let low = 0;
  let high = Math.log(tokensMax) + 10;
  let lowSum = 0;
  let highSum = Number.POSITIVE_INFINITY;
  // Sums that differ by one token have nothing between them.
  for (let round = 0; round < 60 && highSum - lowSum > 1; round += 1) {
    const middle = (low + high) / 2;
    const sum = all.reduce((total, d) => total + lengthAt(middle + d, tokensMax), 0);
    if (sum / all.length < tokensMean) [low, lowSum] = [middle, sum];
    else [high, highSum] = [middle, sum];
  }
  return deviations.map((group) => group.map((d) => lengthAt(low + d, tokensMax)));
}

function lengthAt(log: number, tokensMax: number): number {
  return Math.max(1, Math.min(tokensMax, Math.round(Math.exp(log))));
}

/** Inverse distribution function. */
const quantile = (table: readonly number[], probability: number): number =>
  interpolated(PROBABILITIES, table, probability);

/** Linear between the points, flat beyond the outermost. */
export function interpolated(xs: readonly number[], ys: readonly number[], x: number): number {
  let i = 0;
  while (i < xs.length && (xs[i] ?? 0) < x) i += 1;
  if (i === 0) return ys[0] ?? 0;
  if (i === xs.length) return ys[i - 1] ?? 0;
  const before = xs[i - 1] ?? 0;
  const share = (x - before) / ((xs[i] ?? 1) - before);
  return (ys[i - 1] ?? 0) * (1 - share) + (ys[i] ?? 0) * share;
}

const SPREAD_POINTS = 1000;
const SPREAD_RMS = Math.sqrt(
  meanOf(
    Array.from(
      { length: SPREAD_POINTS },
      (_, i) => quantile(SPREAD, (i + 0.5) / SPREAD_POINTS) ** 2,
    ),
  ),
);
