// How long a step of one vLLM server takes by its rows (tokens computed), on one core of several hosts with the priced model
// (docs/experiments/vllm-priced.md). Work that was counted on one host has a time on each of them.

/**
 * Rows and milliseconds; straight between them, and beyond the last. Up to 32 rows they were recorded. Of prompts nothing
 * was: on the AMD a row takes what runs with and without recomputed prompts differ by, 0.6 ms; with matrix units (AMX) it
 * is taken to be half of that, and on the Xeon without them as long as between 16 and 32 rows.
 */
const RECORDED = {
  amd: [
    [1, 20],
    [8, 29],
    [16, 43],
    [32, 69],
    [512, 357],
  ],
  amx: [
    [1, 39],
    [8, 48],
    [16, 55],
    [32, 68],
    [512, 212],
  ],
  xeon: [
    [1, 27],
    [4, 40],
    [16, 59],
    [32, 100],
    [512, 820],
  ],
} as const satisfies Record<string, readonly (readonly [number, number])[]>;

export type Host = keyof typeof RECORDED;
export const HOSTS = Object.keys(RECORDED) as Host[];

export function stepMs(host: Host, rows: number): number {
  const points: readonly (readonly [number, number])[] = RECORDED[host];
  const found = points.findIndex(([known]) => known >= rows);
  const at = Math.max(1, found < 0 ? points.length - 1 : found);
  const [fromRows, fromMs] = points[at - 1] ?? [0, 0];
  const [toRows, toMs] = points[at] ?? [0, 0];
  return fromMs + ((rows - fromRows) * (toMs - fromMs)) / (toRows - fromRows);
}

/** Seconds of steps with so many rows on each host. */
export function workOf(rows: readonly number[]): { amd_s: number; amx_s: number; xeon_s: number } {
  const seconds = (host: Host) => rows.reduce((sum, one) => sum + stepMs(host, one), 0) / 1000;
  return { amd_s: seconds("amd"), amx_s: seconds("amx"), xeon_s: seconds("xeon") };
}
