// `foretoken simulate`: what a scheduler would do on engines that are not there. Reads the options, runs the cells and
// writes the reports. All output is labelled as simulated.

import { Command } from "commander";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { loadCore } from "../core/wasm/load.ts";
import { pagePath } from "../tools/picture/page.ts";
import {
  checkPublished,
  type Picture,
  runWorkload,
  type SimulateReport,
  type WorkloadReport,
} from "../tools/simulate/experiment.ts";
import { htmlReport } from "../tools/simulate/html.ts";
import { chunkTokensOf, SYSTEM_NAMES, type SystemName } from "../tools/simulate/systems.ts";
import { WORKLOAD_NAMES, type Workload } from "../tools/simulate/workload.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { jsonOf, writeOutput } from "./output.ts";
import { publishedTable, workloadTable } from "./simulate-table.ts";
import { withLengths, workloadsOf } from "./simulate-workload.ts";
import { Status } from "./status.ts";

const FIELD_NAMES = [
  "workload",
  "systems",
  "simulatedDraft",
  "seeds",
  "chunkTokens",
  "lengths",
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
  if (settings.report !== null) writeOutput("--report", settings.report, jsonOf(report));
  if (settings.json) console.log(jsonOf(report));
  else if (!settings.quiet) console.log(publishedTable(cells, settings.seeds));
}

async function printWorkloads(settings: SimulateSettings): Promise<void> {
  const systems = systemsOf(settings.systems);
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
      isPictured: settings.report !== null,
    });
    reports[workload.name] = made.report;
    pictures.push(...made.pictures);
    status.end();
    if (!settings.quiet && !settings.json) console.log(workloadTable(workload.name, made.report));
  }
  const report: SimulateReport = { simulated: true, workloads: reports };
  if (settings.report !== null) {
    writeOutput("--report", settings.report, jsonOf(report));
    writeOutput("--report", pagePath(settings.report), htmlReport(report, pictures));
  }
  if (settings.json) console.log(jsonOf(report));
}

async function wantedWorkloads(settings: SimulateSettings): Promise<Workload[]> {
  const workloads = workloadsOf(settings.workload);
  const { lengths } = settings;
  if (lengths === null) return workloads;
  return Promise.all(workloads.map((workload) => withLengths(workload, lengths)));
}

function systemsOf(text: string): readonly SystemName[] {
  if (text === "all") return SYSTEM_NAMES;
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
  return (name) =>
    status.show(
      () => [`simulating ${name}`],
      () => `simulating ${name}`,
    );
}
