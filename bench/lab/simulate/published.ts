// The figures that the Seer paper published (seer.md, section 5), and which of them the simulator was fitted on.
// Only veRL's own rows are fitted, with and without its speculative decoding; all others are predictions.

import type { SimDraft } from "./cell.ts";
import type { SystemName } from "./systems.ts";
import type { WorkloadName } from "./workload.ts";

export type Metric =
  | "speedup"
  | "wall_s"
  | "tail_s"
  | "tail_ratio"
  | "preemptions"
  | "idle_share"
  | "finish_spread"
  | "late_start"
  | "migrated_tb";

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

type Row = readonly [SystemName, SimDraft, Metric, number, ("fitted" | "predicted")?];

function rows(
  source: string,
  workload: WorkloadName,
  list: readonly Row[],
  groupSize: number | null = null,
): PublishedCell[] {
  return list.map(([system, draft, metric, value, kind]) => {
    const isFitted = kind === "fitted";
    return { source, workload, groupSize, system, draft, metric, value, isFitted };
  });
}

/** Fig. 7, one group size: veRL + SD, StreamRL-Oracle, StreamRL-Oracle + SD, Seer. */
function endToEnd(
  workload: WorkloadName,
  groupSize: number,
  values: readonly [number, number, number, number],
): PublishedCell[] {
  const [sd, oracle, oracleSd, seer] = values;
  return rows(
    "Fig. 7",
    workload,
    [
      ["verl", "vanilla", "speedup", sd, "fitted"],
      ["streamrl-oracle", "off", "speedup", oracle],
      ["streamrl-oracle", "vanilla", "speedup", oracleSd],
      ["seer", "grouped", "speedup", seer],
    ],
    groupSize,
  );
}

export const PUBLISHED: readonly PublishedCell[] = [
  ...rows("Fig. 8", "moonlight", [
    ["verl", "off", "wall_s", 3910, "fitted"],
    ["verl", "off", "tail_s", 1817, "fitted"],
    ["seer", "grouped", "wall_s", 2181],
    ["seer", "grouped", "tail_s", 278],
  ]),
  ...rows("Fig. 8", "qwen2-vl-72b", [
    ["verl", "off", "wall_s", 3957, "fitted"],
    ["verl", "off", "tail_s", 2301, "fitted"],
    ["seer", "grouped", "wall_s", 1922],
    ["seer", "grouped", "tail_s", 123],
  ]),
  ...rows("Fig. 8", "kimi-k2", [
    ["verl", "off", "wall_s", 12_202, "fitted"],
    ["verl", "off", "tail_s", 3144, "fitted"],
    ["seer", "grouped", "wall_s", 8267],
    ["seer", "grouped", "tail_s", 850],
  ]),
  ...rows("section 2", "qwen2-vl-72b", [
    ["verl", "off", "preemptions", 13_686, "fitted"],
    ["verl", "off", "idle_share", 0.37, "fitted"],
    ["verl", "off", "finish_spread", 0.7, "fitted"],
    ["verl", "off", "late_start", 0.42, "fitted"],
  ]),
  ...rows("Table 4", "moonlight", [
    ["divided", "off", "speedup", 1.41],
    ["seer", "off", "speedup", 1.47],
    ["seer", "grouped", "speedup", 1.9],
  ]),
  ...rows("Table 4", "qwen2-vl-72b", [
    ["divided", "off", "speedup", 1.42],
    ["seer", "off", "speedup", 1.56],
    ["seer", "grouped", "speedup", 2.04],
  ]),
  ...rows("Table 4", "kimi-k2", [
    ["divided", "off", "speedup", 1.16],
    ["seer", "off", "speedup", 1.27],
    ["seer", "grouped", "speedup", 1.53],
  ]),
  ...rows("Fig. 10", "qwen2-vl-72b", [
    ["oracle", "off", "speedup", 1.63],
    ["divided", "off", "tail_ratio", 0.79],
    ["seer", "off", "tail_ratio", 0.11],
    ["oracle", "off", "tail_ratio", 0],
  ]),
  ...rows("Fig. 11", "moonlight", [
    ["verl", "vanilla", "speedup", 1.18, "fitted"],
    ["verl", "grouped", "speedup", 1.26],
  ]),
  ...rows("Fig. 11", "qwen2-vl-72b", [
    ["verl", "vanilla", "speedup", 1.06, "fitted"],
    ["verl", "grouped", "speedup", 1.38],
  ]),
  ...rows("Fig. 11", "kimi-k2", [
    ["verl", "vanilla", "speedup", 1.22, "fitted"],
    ["verl", "grouped", "speedup", 1.25],
  ]),
  // "Seer +43 %": 2.04 / 1.43.
  ...rows("Fig. 12", "qwen2-vl-72b", [["partial-rollout", "off", "speedup", 2.04 / 1.43]]),
  ...rows("section 4.5.3", "qwen2-vl-72b", [["seer", "off", "migrated_tb", 3]]),
  ...endToEnd("moonlight", 8, [1.16, 1.21, 1.62, 1.78]),
  ...endToEnd("moonlight", 16, [1.34, 1.3, 1.56, 1.83]),
  ...endToEnd("qwen2-vl-72b", 8, [1.14, 1.33, 1.46, 1.82]),
  ...endToEnd("qwen2-vl-72b", 16, [1.08, 1.43, 1.57, 2.04]),
  ...endToEnd("kimi-k2", 8, [1.26, 0.99, 1.09, 1.48]),
  ...endToEnd("kimi-k2", 16, [1.22, 0.94, 1.02, 1.44]),
];

/** The published speed-up over veRL of a system at the workload's own group size; null: none. */
export function publishedSpeedup(
  workload: string,
  system: SystemName,
  draft: SimDraft,
): number | null {
  if (system === "verl" && draft === "off") return 1;
  const found = PUBLISHED.filter(
    (cell) =>
      cell.workload === workload &&
      cell.system === system &&
      cell.draft === draft &&
      cell.metric === "speedup" &&
      (cell.groupSize ?? OWN_GROUP_SIZE[cell.workload]) === OWN_GROUP_SIZE[cell.workload],
  );
  return (found.find(({ groupSize }) => groupSize === null) ?? found[0])?.value ?? null;
}

const OWN_GROUP_SIZE: Readonly<Record<WorkloadName, number>> = {
  moonlight: 8,
  "qwen2-vl-72b": 16,
  "kimi-k2": 8,
};
