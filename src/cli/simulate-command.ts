// `foretoken simulate --trace`: a recorded iteration under several policies, on engines modelled by their recorded steps.

import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { POLICY_NAMES } from "../core/schedule/policies.ts";
import { loadCore } from "../core/wasm/load.ts";
import { figureOf } from "../observe/picture/figure.ts";
import { headlineOf, savedPage } from "../observe/picture/page.ts";
import { type ComparisonReport, comparePolicies } from "../tools/simulate/compare.ts";
import { recordingOf } from "../tools/simulate/recording.ts";
import { readTracedRuns } from "../tools/trace/report.ts";
import { commandOf } from "./command.ts";
import { formatCount, formatSeconds, formatShare } from "./format.ts";
import { type Column, jsonOf, outputsOf, reportFiles, tableOf } from "./output.ts";

const EXAMPLES = `
REPORT is what \`foretoken rollout --report REPORT\` writes, or GET
/foretoken/timeline of a sidecar at the end of an iteration. Prompts, lengths,
arrivals, engines and their step times are those of its first run; the scheduler
is the production one, and engines are modelled, in virtual time. Drafts accept
what they accepted on average.

Examples:
  $ foretoken rollout --demo --report out/report.json
  $ foretoken simulate --trace out/report.json --report out/simulated.json`;

export const simulateCommand = commandOf({
  name: "simulate",
  description: "Simulate a recorded iteration under several policies.",
  help: EXAMPLES,
  fields: ["trace", "policies", "chunkTokens", "report", "json", "quiet"],
  run: simulate,
});

type Asked = Settings<"trace" | "policies" | "chunkTokens" | "report" | "json" | "quiet">;

async function simulate(settings: Asked): Promise<number> {
  const { trace, chunkTokens, report: path, json, quiet } = settings;
  if (trace === null) {
    throw new AppError("usage", "--trace is missing: it names the report of a rollout");
  }
  const policies = settings.policies.length > 0 ? settings.policies : POLICY_NAMES;
  const files = reportFiles(outputsOf([trace]), path);
  const [run] = readTracedRuns(trace);
  if (run === undefined) throw new AppError("usage", `${trace}: no run`);
  const recording = recordingOf(run, trace);
  const report = await comparePolicies(recording, { policies, chunkTokens, core: loadCore() });
  files.report?.write(jsonOf(report));
  files.page?.write(pageWith(report));
  if (json) console.log(jsonOf(report));
  else if (!quiet) {
    const table = tableOf(Object.entries(report.runs), COLUMNS);
    console.log(`SIMULATED from ${sentenceOf(report.recorded)}\n${table}`);
  }
  return 0;
}

type Simulated = readonly [policy: string, run: ComparisonReport["runs"][string]];

const COLUMNS: readonly Column<Simulated>[] = [
  ["policy", ([policy]) => policy],
  ["wall", ([, run]) => formatSeconds(run.wall_s)],
  ["speed-up", ([, run]) => run.speedup.toFixed(2)],
  ["tail", ([, run]) => formatSeconds(run.tail_s)],
  ["idle", ([, run]) => formatShare(run.idle_share)],
  ["preempted", ([, run]) => formatCount(run.preemptions)],
  ["recomputed", ([, run]) => formatCount(run.recomputed_tokens)],
  ["moves", ([, run]) => formatCount(run.migrations)],
  ["moved tokens", ([, run]) => formatCount(run.migrated_tokens)],
];

function sentenceOf(recorded: ComparisonReport["recorded"]): string {
  const { name, wall_s: wallS, responses, engines, unfinished } = recorded;
  const { step_ms: stepMs, row_ms: rowMs, step_error: error, tokens_per_step: rate } = recorded;
  const open = unfinished === 0 ? "" : ` (${formatCount(unfinished)} unfinished)`;
  const size = `${formatCount(responses)} responses${open} on ${formatCount(engines)} engines`;
  const step = `a step takes ${stepMs.toFixed(1)} ms and ${rowMs.toFixed(2)} ms for each further row, within ${formatShare(error)}`;
  const moves = recorded.moves_kv ? "" : ", and KV of a request that moves is computed again";
  const drafts = rate > 1 ? `, and makes ${rate.toFixed(2)} tokens of a request` : "";
  return `${name}, recorded: ${formatSeconds(wallS)}, ${size}; ${step}${drafts}${moves}`;
}

const FLAG = "Simulated: the production scheduler on modelled engines in virtual time.";

function pageWith({ recorded, runs: simulated }: ComparisonReport): string {
  const all = Object.entries(simulated).map(([name, run]) => ({ name, ...run }));
  const { responses: requests } = recorded;
  const headline = headlineOf(
    all.map(({ wall_s }) => ({ wall_s, requests })),
    true,
  );
  const facts = [`From ${sentenceOf(recorded)}.`];
  const runs = all.map(figureOf);
  return savedPage({ title: "foretoken simulate", headline, runs, facts, flag: FLAG });
}
