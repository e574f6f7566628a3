// The figures that the Seer paper published (seer.md, section 5), and which of them the simulator was fitted on.
// Only veRL's own rows are fitted, with and without its speculative decoding; all others are predictions.

import type { SimDraft } from "./cell.ts";
import type { IterationResult } from "./iteration.ts";
import type { SystemName } from "./systems.ts";
import { WORKLOAD_NAMES, type WorkloadName } from "./workload.ts";

export const rateOf = (run: IterationResult) => run.outputTokens / run.wallS;

/** What is published of a run, beside veRL's on the same lengths. */
export const METRICS = {
  speedup: (run, verl) => rateOf(run) / rateOf(verl),
  wall_s: (run) => run.wallS,
  tail_s: (run) => run.tailS,
  tail_ratio: (run, verl) => run.tailS / verl.tailS,
  preemptions: (run) => run.preemptions,
  idle_share: (run) => run.idleShare,
  finish_spread: (run) => run.finishSpread,
  late_start: (run) => run.lateStartShare,
  migrated_tb: (run) => run.migratedBytes / 1e12,
} as const satisfies Record<string, (run: IterationResult, verl: IterationResult) => number>;
type Metric = keyof typeof METRICS;

export interface PublishedCell {
  readonly source: string;
  readonly workload: WorkloadName;
  /** null: the workload's own. */
  readonly groupSize: number | null;
  readonly system: SystemName;
  readonly draft: SimDraft;
  readonly metric: Metric;
  readonly value: number;
  /** true: a constant was fitted on it, so its error is not a prediction error. */
  readonly isFitted: boolean;
}

/** Figures of Moonlight, Qwen2-VL-72B and Kimi-K2; null: not published. */
type Values = readonly [number | null, number | null, number | null];
type Row = readonly [SystemName, SimDraft, Metric, Values, "fitted"?];

const qwen = (value: number): Values => [null, value, null];

/** `groupSize` null: the workload's own. */
function published(
  source: string,
  rows: readonly Row[],
  groupSize: number | null = null,
): PublishedCell[] {
  return WORKLOAD_NAMES.flatMap((workload, i) =>
    rows.flatMap(([system, draft, metric, values, kind]) => {
      const value = values[i] ?? null;
      const isFitted = kind === "fitted";
      const cell = { source, workload, groupSize, system, draft, metric, isFitted };
      return value === null ? [] : [{ ...cell, value }];
    }),
  );
}

export const PUBLISHED: readonly PublishedCell[] = [
  ...published("Fig. 8", [
    ["verl", "off", "wall_s", [3910, 3957, 12_202], "fitted"],
    ["verl", "off", "tail_s", [1817, 2301, 3144], "fitted"],
    ["seer", "grouped", "wall_s", [2181, 1922, 8267]],
    ["seer", "grouped", "tail_s", [278, 123, 850]],
  ]),
  ...published("section 2", [
    ["verl", "off", "preemptions", qwen(13_686), "fitted"],
    ["verl", "off", "idle_share", qwen(0.37), "fitted"],
    ["verl", "off", "finish_spread", qwen(0.7), "fitted"],
    ["verl", "off", "late_start", qwen(0.42), "fitted"],
  ]),
  ...published("Table 4", [
    ["divided", "off", "speedup", [1.41, 1.42, 1.16]],
    ["seer", "off", "speedup", [1.47, 1.56, 1.27]],
    ["seer", "grouped", "speedup", [1.9, 2.04, 1.53]],
  ]),
  ...published("Fig. 10", [
    ["oracle", "off", "speedup", qwen(1.63)],
    ["divided", "off", "tail_ratio", qwen(0.79)],
    ["seer", "off", "tail_ratio", qwen(0.11)],
    ["oracle", "off", "tail_ratio", qwen(0)],
  ]),
  ...published("Fig. 11", [
    ["verl", "vanilla", "speedup", [1.18, 1.06, 1.22], "fitted"],
    ["verl", "grouped", "speedup", [1.26, 1.38, 1.25]],
  ]),
  // "Seer +43 %": 2.04 / 1.43.
  ...published("Fig. 12", [["partial-rollout", "off", "speedup", qwen(2.04 / 1.43)]]),
  ...published("section 4.5.3", [["seer", "off", "migrated_tb", qwen(3)]]),
  ...endToEnd(8, [1.16, 1.14, 1.26], [1.21, 1.33, 0.99], [1.62, 1.46, 1.09], [1.78, 1.82, 1.48]),
  ...endToEnd(16, [1.34, 1.08, 1.22], [1.3, 1.43, 0.94], [1.56, 1.57, 1.02], [1.83, 2.04, 1.44]),
];

/** Fig. 7, one group size. */
function endToEnd(groupSize: number, sd: Values, oracle: Values, oracleSd: Values, seer: Values) {
  const rows: readonly Row[] = [
    ["verl", "vanilla", "speedup", sd, "fitted"],
    ["streamrl-oracle", "off", "speedup", oracle],
    ["streamrl-oracle", "vanilla", "speedup", oracleSd],
    ["seer", "grouped", "speedup", seer],
  ];
  return published("Fig. 7", rows, groupSize);
}

const OWN_GROUP_SIZE: Readonly<Record<WorkloadName, number>> = {
  moonlight: 8,
  "qwen2-vl-72b": 16,
  "kimi-k2": 8,
};

/** The published speed-up over veRL of a system at the workload's own group size; null: none. */
export function publishedSpeedup(
  workload: string,
  system: SystemName,
  draft: SimDraft,
): number | null {
  if (system === "verl" && draft === "off") return 1;
  const of = (groupSize: number | null) =>
    PUBLISHED.find(
      (cell) =>
        cell.workload === workload &&
        cell.system === system &&
        cell.draft === draft &&
        cell.metric === "speedup" &&
        cell.groupSize === groupSize,
    );
  const own = WORKLOAD_NAMES.find((name) => name === workload);
  const found = of(null) ?? (own === undefined ? undefined : of(OWN_GROUP_SIZE[own]));
  return found?.value ?? null;
}
