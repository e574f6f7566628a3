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

import { parseArgs } from "node:util";
import { formatBytes, formatCount, formatSeconds, formatShare } from "../../src/cli/format.ts";
import { textTable } from "../../src/cli/output.ts";
import { AppError } from "../../src/core/base/errors.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { helpFrom, writeReport } from "../harness.ts";
import {
  type CheckedCell,
  checkPublished,
  type DraftOption,
  runWorkload,
  type WorkloadReport,
} from "./simulate/experiment.ts";
import { withTrace, workloadsOf } from "./simulate/inputs.ts";
import { COMPARED, RELATED_NAMES, SYSTEM_NAMES, type SystemName } from "./simulate/systems.ts";
import { WORKLOAD_NAMES } from "./simulate/workload.ts";

const OPTIONS = {
  workload: { type: "string", default: "qwen2-vl-72b" },
  systems: { type: "string", default: "all" },
  draft: { type: "string", default: "off" },
  seeds: { type: "string", default: "5" },
  "chunk-tokens": { type: "string" },
  trace: { type: "string" },
  published: { type: "boolean", default: false },
  report: { type: "string" },
} as const;
const DRAFTS: readonly DraftOption[] = ["off", "grouped", "own"];

async function main(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({ args: [...args], options: OPTIONS });
  const seeds = numberOf("--seeds", values.seeds);
  const chunks = values["chunk-tokens"];
  const chunkTokens = chunks === undefined ? null : numberOf("--chunk-tokens", chunks);
  const shared = { seeds, chunkTokens, core: loadCore() };
  if (values.published) {
    const cells = await checkPublished({ ...shared, workloads: WORKLOAD_NAMES });
    writeReport(values.report, { simulated: true, seeds, cells });
    console.log(publishedTable(cells, seeds));
    return;
  }
  const systems = systemsOf(values.systems);
  const draft = DRAFTS.find((name) => name === values.draft);
  if (draft === undefined) throw wrong("--draft", values.draft, DRAFTS.join(", "));
  const workloads: Record<string, WorkloadReport> = {};
  for (const named of await workloadsOf(values.workload)) {
    const workload = values.trace === undefined ? named : await withTrace(named, values.trace);
    const seedsOfIt = workload.lengths === null ? seeds : 1;
    const report = await runWorkload(workload, { ...shared, systems, draft, seeds: seedsOfIt });
    workloads[workload.name] = report;
    console.log(workloadTable(workload.name, report));
  }
  writeReport(values.report, { simulated: true, workloads });
}

const wrong = (flag: string, value: string, others: string): AppError =>
  new AppError("usage", `${flag} is "${value}"; it is one of ${others}`);

function numberOf(flag: string, text: string): number {
  const value = Number(text);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw new AppError("usage", `${flag} is "${text}"; it is a whole number from 1 on`);
}

function systemsOf(text: string): readonly SystemName[] {
  if (text === "all") return COMPARED;
  if (text === "related") return ["verl", "seer", ...RELATED_NAMES];
  return text.split(",").map((name) => {
    const known = SYSTEM_NAMES.find((one) => one === name);
    if (known === undefined) throw wrong("--systems", name, SYSTEM_NAMES.join(", "));
    return known;
  });
}

const WORKLOAD_HEAD = [
  ...["system", "drafts", "wall", "x veRL", "95 % interval", "paper"],
  ...["tail", "tail cut", "preempted", "moved", "x bound", "iteration"],
  ...["x veRL", "length bias", "stale", "GPU s/1000", "ETTR"],
];

/** Without a line end at the end. */
function workloadTable(name: string, report: WorkloadReport): string {
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
    formatSeconds(row.iteration_s),
    row.iteration_speedup.toFixed(2),
    `${(row.length_bias * 100).toFixed(1)} %`,
    formatShare(row.stale_share),
    row.gpu_s_per_1000_tokens.toFixed(2),
    row.ettr?.toFixed(3) ?? "-",
  ]);
  const size = `${formatCount(report.requests)} requests, mean ${formatCount(report.tokens_mean)} tokens`;
  const bound = `lower bound ${formatSeconds(report.lower_bound_s)}: no schedule can be faster`;
  const title = `SIMULATED ${name}: ${size}, ${seedsOf(report.seeds)}; ${bound}`;
  return `${title}\n${textTable(WORKLOAD_HEAD, rows, 2)}`;
}

const PUBLISHED_HEAD = [
  ...["source", "workload", "system", "drafts", "figure"],
  ...["G", "paper", "simulated", "95 %", "error", "own admission"],
];

/** Predicted beside published, without a line end at the end. */
function publishedTable(cells: readonly CheckedCell[], seeds: number): string {
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
      cell.improved?.toFixed(digits) ?? "",
    ];
  });
  const title = `SIMULATED against the Seer paper, ${seedsOf(seeds)}; "fit": a constant was fitted on it`;
  const table = textTable(PUBLISHED_HEAD, rows, 5);
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

if (import.meta.main) {
  helpFrom(import.meta.path);
  await main(process.argv.slice(2));
}
