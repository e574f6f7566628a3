// The tables of `foretoken simulate`. Every title labels the figures as simulated. It formats the reports
// and computes nothing but text.

import type { CheckedCell, WorkloadReport } from "../tools/simulate/experiment.ts";
import { formatBytes, formatCount, formatSeconds, formatShare } from "./format.ts";
import { standardTable, textTable } from "./output.ts";

const WORKLOAD_HEAD = [
  ...["system", "drafts", "wall", "x veRL", "95 % interval", "paper"],
  ...["tail", "tail cut", "preempted", "moved", "x bound"],
];

/** Without a line end at the end. */
export function workloadTable(name: string, report: WorkloadReport): string {
  const rows = Object.entries(report.systems).map(([system, row]) => [
    system,
    row.draft,
    formatSeconds(row.wall_s),
    row.speedup_over_verl.toFixed(2),
    intervalOf(row.ci95, 2),
    row.published_speedup?.toFixed(2) ?? "-",
    formatSeconds(row.tail_s),
    formatShare(row.tail_cut),
    formatCount(row.preemptions),
    formatBytes(row.migrated_bytes),
    row.over_lower_bound?.toFixed(2) ?? "-",
  ]);
  const size = `${formatCount(report.requests)} requests, mean ${formatCount(report.tokens_mean)} tokens`;
  const bound = `lower bound ${formatSeconds(report.lower_bound_s)}: no schedule can be faster`;
  const title = `SIMULATED ${name}: ${size}, ${seedsOf(report.seeds)}; ${bound}`;
  return `${title}\n${textTable(WORKLOAD_HEAD, rows, { ...standardTable(), left: 2 })}`;
}

const PUBLISHED_HEAD = [
  ...["source", "workload", "system", "drafts", "figure"],
  ...["G", "paper", "simulated", "95 %", "error"],
];

/** Predicted beside published, without a line end at the end. */
export function publishedTable(cells: readonly CheckedCell[], seeds: number): string {
  const rows = cells.map((cell) => {
    const digits = cell.value >= 100 ? 0 : 2;
    return [
      cell.source,
      cell.workload,
      cell.system,
      cell.draft,
      cell.metric,
      String(cell.groupSize ?? ""),
      cell.value.toFixed(digits),
      cell.predicted.toFixed(digits),
      intervalOf(cell.ci95, digits),
      errorOf(cell),
    ];
  });
  const title = `SIMULATED against the Seer paper, ${seedsOf(seeds)}; "fit": a constant was fitted on it`;
  const table = textTable(PUBLISHED_HEAD, rows, { ...standardTable(), left: 5 });
  return `${title}\n${table}\n${summaryOf(cells)}`;
}

/** Within this, a prediction counts as met. */
const GOAL = 0.1;

function summaryOf(cells: readonly CheckedCell[]): string {
  const predicted = cells.filter((cell) => !cell.isFitted);
  const met = predicted.filter(isMet).length;
  return `${met} of ${predicted.length} predictions within 10 %; ${cells.length - predicted.length} cells were fitted on`;
}

function isMet(cell: CheckedCell): boolean {
  return cell.error === null ? cell.predicted <= GOAL : Math.abs(cell.error) <= GOAL;
}

function errorOf(cell: CheckedCell): string {
  const text =
    cell.error === null
      ? cell.predicted.toFixed(2)
      : `${cell.error >= 0 ? "+" : ""}${(cell.error * 100).toFixed(0)} %`;
  if (cell.isFitted) return `${text} fit`;
  return isMet(cell) ? text : `${text} !`;
}

function intervalOf(ci95: readonly [number, number] | null, digits: number): string {
  return ci95 === null ? "-" : `${ci95[0].toFixed(digits)} - ${ci95[1].toFixed(digits)}`;
}

function seedsOf(seeds: number): string {
  return seeds === 1 ? "1 seed" : `${seeds} seeds`;
}
