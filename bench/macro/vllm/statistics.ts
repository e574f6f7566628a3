// Ratios of times by round, as geometric means with a t interval of their logarithms.

/** Student's t at 97.5 %, by degrees of freedom from 1 on; beyond the table the normal distribution's. */
const T_975 = [
  12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145,
  2.131, 2.12, 2.11, 2.101, 2.093, 2.086,
];

export const studentOf = (freedom: number): number => T_975[freedom - 1] ?? 1.96;

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
  const mean = meanOf(logs);
  const freedom = logs.length - 1;
  if (freedom < 1) return { mean: Math.exp(mean), low: null, high: null, rounds };
  const variance = logs.reduce((sum, log) => sum + (log - mean) ** 2, 0) / freedom;
  const half = studentOf(freedom) * Math.sqrt(variance / logs.length);
  return { mean: Math.exp(mean), low: Math.exp(mean - half), high: Math.exp(mean + half), rounds };
}

/** NaN: there are no values. */
export function meanOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

export function sumOf<T>(values: readonly T[], value: (of: T) => number): number {
  return values.reduce((sum, of) => sum + value(of), 0);
}
