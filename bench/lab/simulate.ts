// The paper's reproduction: iterations of 32 nodes under the schedulers of the Seer paper, Foretoken's and those of related
// systems, on modelled engines in virtual time (docs/SIMULATOR.md). All that it prints is simulated.
//
//   bun bench/lab/simulate.ts [--workload NAME,...|all] [--systems NAME,...|all|related] [--draft off|grouped|own]
//       [--seeds 5] [--chunk-tokens N] [--trace FILE] [--published] [--report FILE.json]
//
// workload: moonlight, qwen2-vl-72b, kimi-k2, all, or a module FILE.ts whose `workload` is one (simulate/workload.ts).
// systems: `all` are the paper's and the policies that divide, `related` one idea each of related systems; speed-ups are
// over verl without drafts. draft: grouped, as Seer's (baselines: as in the paper); own: foretoken with its own drafter, as
// measured. trace: groups and lengths of recorded responses, or of a trace of sessions. published: every figure of the paper.

import { formatBytes, formatCount, formatSeconds, formatShare } from "../../src/cli/format.ts";
import { type Column, tableOf } from "../../src/cli/output.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { flagsOf, oneOf, someOf, writeReport } from "../harness.ts";
import {
  type CheckedCell,
  checkPublished,
  type DraftOption,
  runWorkload,
  type SystemReport,
  type WorkloadReport,
} from "./simulate/experiment.ts";
import { withTrace, workloadsOf } from "./simulate/inputs.ts";
import { COMPARED, RELATED_NAMES, SYSTEM_NAMES } from "./simulate/systems.ts";

const FLAGS = {
  workload: "qwen2-vl-72b",
  systems: "all",
  draft: "off",
  seeds: 5,
  chunkTokens: 0,
  trace: null,
  published: false,
} as const;
const DRAFTS: readonly DraftOption[] = ["off", "grouped", "own"];

const WORKLOAD_COLUMNS: readonly Column<readonly [name: string, row: SystemReport]>[] = [
  ["system", ([name]) => name],
  ["drafts", ([, row]) => row.draft],
  ["wall", ([, row]) => formatSeconds(row.wall_s)],
  ["x veRL", ([, row]) => row.speedup_over_verl.toFixed(2)],
  ["95 % interval", ([, row]) => intervalText(row.ci95, 2)],
  ["paper", ([, row]) => row.published_speedup?.toFixed(2) ?? "-"],
  ["tail", ([, row]) => formatSeconds(row.tail_s)],
  ["tail cut", ([, row]) => formatShare(row.tail_cut)],
  ["preempted", ([, row]) => formatCount(row.preemptions)],
  ["moved", ([, row]) => formatBytes(row.migrated_bytes)],
  ["x bound", ([, row]) => row.over_lower_bound?.toFixed(2) ?? "-"],
  ["iteration", ([, row]) => formatSeconds(row.iteration_s)],
  ["x veRL", ([, row]) => row.iteration_speedup.toFixed(2)],
  ["length bias", ([, row]) => `${(row.length_bias * 100).toFixed(1)} %`],
  ["stale", ([, row]) => formatShare(row.stale_share)],
  ["GPU s/1000", ([, row]) => row.gpu_s_per_1000_tokens.toFixed(2)],
  ["ETTR", ([, row]) => row.ettr?.toFixed(3) ?? "-"],
];

function workloadTable(name: string, report: WorkloadReport): string {
  const size = `${formatCount(report.requests)} requests, mean ${formatCount(report.tokens_mean)} tokens`;
  const bound = `lower bound ${formatSeconds(report.lower_bound_s)}: no schedule can be faster`;
  const title = `SIMULATED ${name}: ${size}, ${seedsText(report.seeds)}; ${bound}`;
  return `${title}\n${tableOf(Object.entries(report.systems), WORKLOAD_COLUMNS, 2)}`;
}

const digitsOf = ({ value }: CheckedCell): number => (value >= 100 ? 0 : 2);

const PUBLISHED_COLUMNS: readonly Column<CheckedCell>[] = [
  ["source", (cell) => cell.source],
  ["workload", (cell) => cell.workload],
  ["system", (cell) => cell.system],
  ["drafts", (cell) => cell.draft],
  ["figure", (cell) => cell.metric],
  ["G", (cell) => String(cell.groupSize ?? "")],
  ["paper", (cell) => cell.value.toFixed(digitsOf(cell))],
  ["simulated", (cell) => cell.predicted.toFixed(digitsOf(cell))],
  ["95 %", (cell) => intervalText(cell.ci95, digitsOf(cell))],
  ["error", errorText],
  ["own admission", (cell) => cell.improved?.toFixed(digitsOf(cell)) ?? ""],
];

/** Predicted beside published. */
function publishedTable(cells: readonly CheckedCell[], seeds: number): string {
  const predicted = cells.filter((cell) => !cell.isFitted);
  const met = predicted.filter(isMet).length;
  return [
    `SIMULATED against the Seer paper, ${seedsText(seeds)}; "fit": a constant was fitted on it`,
    tableOf(cells, PUBLISHED_COLUMNS, 5),
    `${met} of ${predicted.length} predictions within 10 %; ${cells.length - predicted.length} cells were fitted on`,
  ].join("\n");
}

/** Within this, a prediction counts as met. */
const GOAL = 0.1;

const isMet = ({ error, predicted }: CheckedCell): boolean => Math.abs(error ?? predicted) <= GOAL;

function errorText(cell: CheckedCell): string {
  const { error, predicted } = cell;
  const sign = error !== null && error >= 0 ? "+" : "";
  const text = error === null ? predicted.toFixed(2) : `${sign}${(error * 100).toFixed(0)} %`;
  if (cell.isFitted) return `${text} fit`;
  return isMet(cell) ? text : `${text} !`;
}

function intervalText(ci95: readonly [number, number] | null, digits: number): string {
  return ci95?.map((bound) => bound.toFixed(digits)).join(" - ") ?? "-";
}

const seedsText = (seeds: number): string => (seeds === 1 ? "1 seed" : `${seeds} seeds`);

const { seeds, json, trace, ...flags } = flagsOf(import.meta.path, FLAGS);
const shared = { seeds, chunkTokens: flags.chunkTokens || null, core: loadCore() };
if (flags.published) {
  const cells = await checkPublished(shared);
  writeReport(json, { simulated: true, seeds, cells });
  console.log(publishedTable(cells, seeds));
} else {
  const names = flags.systems === "all" ? COMPARED.join() : flags.systems;
  const related = ["verl", "seer", ...RELATED_NAMES] as const;
  const systems = names === "related" ? related : someOf("systems", names, SYSTEM_NAMES);
  const draft = oneOf("draft", flags.draft, DRAFTS);
  const workloads: Record<string, WorkloadReport> = {};
  for (const named of await workloadsOf(flags.workload)) {
    const workload = trace === null ? named : await withTrace(named, trace);
    const seedsOfIt = workload.lengths === undefined ? seeds : 1;
    const report = await runWorkload(workload, { ...shared, systems, draft, seeds: seedsOfIt });
    workloads[workload.name] = report;
    console.log(workloadTable(workload.name, report));
  }
  writeReport(json, { simulated: true, workloads });
}
