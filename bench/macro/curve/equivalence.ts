// Whether two ways of generation train alike: the test that docs/TRAINERS.md states.

import { meanOf } from "../vllm/statistics.ts";

/** Student's t at 95 %, by degrees of freedom from 1 on; beyond the table the normal distribution's. */
const T_95 = [6.314, 2.92, 2.353, 2.132, 2.015, 1.943, 1.895, 1.86, 1.833, 1.812];
const Z_95 = 1.645;

export interface Equivalence {
  /** Mean over seeds of `of` less `base`. */
  readonly difference: number;
  /** Interval of 90 %; null: one seed says nothing about it. */
  readonly low: number | null;
  readonly high: number | null;
  readonly margin: number;
  readonly isEquivalent: boolean;
}

/**
 * Two one-sided t tests at 5 % on the differences of paired runs: one value a seed, the mean over its steps, because
 * the steps of a run depend on one another.
 */
export function equivalence(
  base: readonly (readonly number[])[],
  of: readonly (readonly number[])[],
  margin: number,
): Equivalence {
  const differences = of.map((run, seed) => meanOf(run) - meanOf(base[seed] ?? []));
  const difference = meanOf(differences);
  const freedom = differences.length - 1;
  if (freedom < 1) return { difference, low: null, high: null, margin, isEquivalent: false };
  const variance = differences.reduce((sum, one) => sum + (one - difference) ** 2, 0) / freedom;
  const half = (T_95[freedom - 1] ?? Z_95) * Math.sqrt(variance / differences.length);
  const low = difference - half;
  const high = difference + half;
  return { difference, low, high, margin, isEquivalent: low > -margin && high < margin };
}
