// Confidence intervals of a ratio of sums over groups. Groups are resampled, not responses or steps:
// responses of a group share its difficulty, and steps of a response share its text.

import { fold32, uniformAt } from "../../core/base/hash.ts";

export interface Share {
  readonly numerator: number;
  readonly denominator: number;
}

export interface BootstrapOptions {
  /** The same seed gives the same interval. */
  readonly seed?: number;
  readonly resamples?: number;
  /** Probability mass inside. */
  readonly level?: number;
}

/** 1,000 resamples place the 2.5 % quantile of a normal within 0.1 standard deviations. */
const RESAMPLES = 1000;
const LEVEL = 0.95;
const SEED = 42;

/**
 * Percentile bootstrap (Efron 1979) of sum(numerator) / sum(denominator). Null below two groups:
 * one group does not determine others.
 */
export function bootstrapRatio(
  groups: readonly Share[],
  options: BootstrapOptions = {},
): readonly [low: number, high: number] | null {
  const { seed = SEED, resamples = RESAMPLES, level = LEVEL } = options;
  const counted = groups.filter((group) => group.denominator > 0);
  if (counted.length < 2) return null;
  const ratios = new Float64Array(resamples);
  for (let r = 0; r < resamples; r += 1) {
    // Both halves of the key: uniformAt takes its high bits from one of them alone.
    const key = { hi: fold32(seed, r), lo: fold32(r, seed) };
    let numerator = 0;
    let denominator = 0;
    for (let i = 0; i < counted.length; i += 1) {
      const group = counted[Math.floor(uniformAt(key, i) * counted.length)];
      numerator += group?.numerator ?? 0;
      denominator += group?.denominator ?? 0;
    }
    ratios[r] = numerator / denominator;
  }
  ratios.sort();
  const tail = (1 - level) / 2;
  return [quantile(ratios, tail), quantile(ratios, 1 - tail)];
}

/** Linear between the two nearest of the sorted values. */
export function quantile(sorted: Float64Array, share: number): number {
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const low = sorted[below] ?? Number.NaN;
  const high = sorted[Math.min(below + 1, sorted.length - 1)] ?? low;
  return low + (high - low) * (place - below);
}
