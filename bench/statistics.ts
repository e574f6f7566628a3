// Ratios of times by round, as geometric means with a t interval of their logarithms.

/** Student's t at 97.5 %, by degrees of freedom from 1 on; beyond the table the normal distribution's. */
const T_975 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145,
  2.131, 2.12, 2.11, 2.101, 2.093, 2.086,
];

export interface Ratio {
  readonly mean: number;
  /** 95 %; null: one round says nothing of it. */
  readonly low: number | null;
  readonly high: number | null;
  readonly rounds: readonly number[];
}

/** How many times as long `base` took as `of`, round by round. */
export function ratioOf(base: readonly number[], of: readonly number[]): Ratio {
  const rounds = of.map((value, i) => (base[i] ?? Number.NaN) / value);
  const logs = rounds.map(Math.log);
  const mean = Math.exp(meanOf(logs));
  const [low = null, high = null] = intervalOf(logs)?.map(Math.exp) ?? [];
  return { mean, low, high, rounds };
}

/** The mean's 95 % interval, by Student's t; null below two values. */
export function intervalOf(values: readonly number[]): readonly [number, number] | null {
  const freedom = values.length - 1;
  if (freedom < 1) return null;
  const mean = meanOf(values);
  const variance = sumOf(values, (value) => (value - mean) ** 2) / freedom;
  const half = (T_975[freedom - 1] ?? 1.96) * Math.sqrt(variance / values.length);
  return [mean - half, mean + half];
}

/** A ratio with its interval, as text. */
export function said(ratio: Ratio | null | undefined, digits = 2): string {
  if (ratio == null || !Number.isFinite(ratio.mean)) return "-";
  const { mean, low, high } = ratio;
  const interval = low === null || high === null ? "" : ` (${low.toFixed(2)}-${high.toFixed(2)})`;
  return `${mean.toFixed(digits)}${interval}`;
}

/** NaN: there are no values. */
export function meanOf(values: readonly number[]): number {
  return sumOf(values, (value) => value) / values.length;
}

export function sumOf<T>(values: readonly T[], value: (of: T) => number): number {
  return values.reduce((sum, of) => sum + value(of), 0);
}
