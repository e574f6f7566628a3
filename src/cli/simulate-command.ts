// `foretoken simulate`: what a scheduler would do on engines that are not there. Reads the options, runs the cells and
// writes the reports. All output is labelled as simulated.

import { Command } from "commander";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { loadCore } from "../core/wasm/load.ts";
import {
  type CheckedCell,
  checkPublished,
  type Picture,
  runWorkload,
  type SimulateReport,
  type WorkloadReport,
} from "../tools/simulate/experiment.ts";
import { htmlReport } from "../tools/simulate/html.ts";
import { RELATED_NAMES } from "../tools/simulate/related.ts";
import {
  COMPARED,
  chunkTokensOf,
  SYSTEM_NAMES,
  type SystemName,
} from "../tools/simulate/systems.ts";
import { WORKLOAD_NAMES, type Workload } from "../tools/simulate/workload.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { formatBytes, formatCount, formatSeconds, formatShare } from "./format.ts";
import { jsonOf, outputsOf, reportFiles, textTable } from "./output.ts";
import { withLengths, withTrace, workloadsOf } from "./simulate-workload.ts";
import { Status } from "./terminal.ts";

const FIELD_NAMES = [
  "workload",
  "systems",
  "simulatedDraft",
  "seeds",
  "chunkTokens",
  "lengths",
  "trace",
  "published",
  "report",
  "json",
  "quiet",
] as const;

/** chunkTokens null: each system's own. */
export type SimulateSettings = Omit<Settings<(typeof FIELD_NAMES)[number]>, "chunkTokens"> & {
  readonly chunkTokens: number | null;
};

/** Default shown in the help in place of a number. */
const CHUNK_DEFAULT = `${chunkTokensOf("seer")}, foretoken ${chunkTokensOf("foretoken")}`;

const EXAMPLES = `
Everything it prints is simulated: the production scheduler against modelled
engines, in virtual time.

Examples:
  $ foretoken simulate --workload qwen2-vl-72b --report out/qwen.json
  $ foretoken simulate --workload all --draft own --report out/simulated.json
  $ foretoken simulate --published`;

export function simulateCommand(): Command {
  const command = new Command("simulate")
    .description("Simulate a rollout iteration on many nodes; compare schedulers and their bound.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES, { chunkTokens: CHUNK_DEFAULT });
  return command.action(async () => {
    const settings = readFields(command, FIELD_NAMES);
    const isDefault = command.getOptionValueSource("chunkTokens") === "default";
    await simulate({ ...settings, chunkTokens: isDefault ? null : settings.chunkTokens });
  });
}

async function simulate(settings: SimulateSettings): Promise<void> {
  if (settings.published) await printPublished(settings);
  else await printWorkloads(settings);
}

async function printPublished(settings: SimulateSettings): Promise<void> {
  const file = outputsOf([])("--report", settings.report);
  const status = new Status(settings);
  const cells = await checkPublished({
    seeds: settings.seeds,
    chunkTokens: settings.chunkTokens,
    core: loadCore(),
    workloads: WORKLOAD_NAMES,
    onCell: simulating(status),
  });
  status.end();
  const report = { simulated: true, seeds: settings.seeds, cells };
  file?.write(jsonOf(report));
  if (settings.json) console.log(jsonOf(report));
  else if (!settings.quiet) console.log(publishedTable(cells, settings.seeds));
}

async function printWorkloads(settings: SimulateSettings): Promise<void> {
  const systems = systemsOf(settings.systems);
  const { lengths, trace, workload: names } = settings;
  const inputs = [lengths, trace, ...names.split(",")].filter((input) => input !== null);
  const files = reportFiles(outputsOf(inputs), settings.report);
  const workloads = await wantedWorkloads(settings);
  const reports: Record<string, WorkloadReport> = {};
  const pictures: Picture[] = [];
  for (const workload of workloads) {
    const status = new Status(settings);
    const made = await runWorkload(workload, {
      systems,
      draft: settings.simulatedDraft,
      seeds: workload.lengths === null ? settings.seeds : 1,
      chunkTokens: settings.chunkTokens,
      core: loadCore(),
      onCell: simulating(status),
      isPictured: files.page !== null,
    });
    reports[workload.name] = made.report;
    pictures.push(...made.pictures);
    status.end();
    if (!settings.quiet && !settings.json) console.log(workloadTable(workload.name, made.report));
  }
  const report: SimulateReport = { simulated: true, workloads: reports };
  files.report?.write(jsonOf(report));
  files.page?.write(htmlReport(report, pictures));
  if (settings.json) console.log(jsonOf(report));
}

async function wantedWorkloads(settings: SimulateSettings): Promise<Workload[]> {
  const workloads = workloadsOf(settings.workload);
  const { lengths, trace } = settings;
  if (lengths !== null && trace !== null) {
    throw new AppError("usage", "--lengths and --trace each give the response lengths: use one");
  }
  const path = trace ?? lengths;
  if (path === null) return workloads;
  const recorded = trace === null ? withLengths : withTrace;
  return Promise.all(workloads.map((workload) => recorded(workload, path)));
}

function systemsOf(text: string): readonly SystemName[] {
  if (text === "all") return COMPARED;
  if (text === "related") return ["verl", "seer", ...RELATED_NAMES];
  const names = text.split(",").map((part) => {
    const name = part.trim();
    const known = SYSTEM_NAMES.find((one) => one === name);
    if (known !== undefined) return known;
    const message = `--systems names "${name}"; it is one of ${SYSTEM_NAMES.join(", ")}`;
    throw new AppError("usage", message);
  });
  if (new Set(names).size !== names.length) {
    throw new AppError("usage", `--systems is "${text}"; it names one twice`);
  }
  return names;
}

function simulating(status: Status): (name: string) => void {
  return (name) => {
    const text = () => `simulating ${name}`;
    status.show(() => [text()], text);
  };
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
