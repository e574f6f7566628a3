// `foretoken replay`: what drafting would accept on recorded responses, one line for each drafter, and whether it pays.

import { basename } from "node:path";
import { Command } from "commander";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { type CellResult, type EngineSteps, runCell, speedUp } from "../tools/replay/cell.ts";
import { readGroups } from "../tools/replay/recordings.ts";
import { DRAFTERS, type DrafterKind } from "../tools/replay/replay.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { formatCount } from "./format.ts";
import { jsonOf, outputsOf, textTable } from "./output.ts";
import { Status } from "./terminal.ts";

const FIELD_NAMES = ["limit", "drafter", "engineSteps", "report", "json", "quiet"] as const;

type ReplaySettings = Settings<(typeof FIELD_NAMES)[number]>;

/** Content of the report file. */
export interface ReplayReport {
  readonly results: readonly CellResult[];
}

/** Limit of draft tokens per verification step. */
const BUDGET = 16;
/** Minimum estimated probability of a drafted token. */
const PROBABILITY_MIN = 0.1;
/** Groups that are generated at the same time. */
const LIVE = 8;

const EXAMPLES = `
TRACES are responses as \`foretoken rollout\` writes them (*.jsonl: group, index,
token_ids and, if known, prompt_token_ids; lines of a group beside one another),
or traces (*.json); each may be gzipped (*.gz). The drafter self drafts from a
response's own prompt and text, grouped from its siblings too, 8 groups at a time,
and history from earlier groups of the prompt as well: the column "seen prompts" is
of groups that have some.

Examples:
  $ foretoken replay out/responses.jsonl
  $ foretoken replay out/responses.jsonl --engine-steps 64,18,40`;

export function replayCommand(setStatus: (status: number) => void): Command {
  const command = new Command("replay")
    .description("Replay recorded responses: what drafting would have accepted, and at what cost.")
    .argument("<traces...>", "recorded responses, grouped by prompt")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES);
  return command.action(async (traces: string[]) => {
    await replayFiles(traces, readFields(command, FIELD_NAMES));
    setStatus(0);
  });
}

async function replayFiles(files: readonly string[], settings: ReplaySettings): Promise<void> {
  const { quiet } = settings;
  const engine = engineOf(settings.engineSteps);
  const reportFile = outputsOf(files)("--report", settings.report);
  const status = new Status({ quiet });
  const results: CellResult[] = [];
  const tables: string[] = [];
  for (const file of files) {
    const ofFile = await replayFile(file, settings, status);
    results.push(...ofFile);
    tables.push(fileTable(file, ofFile, engine));
  }
  status.end();
  const report: ReplayReport = { results };
  reportFile?.write(jsonOf(report));
  if (settings.json) console.log(jsonOf(report));
  else if (!quiet) console.log(tables.join("\n\n"));
}

/** One result for each drafter; "history" only where prompts come again. */
async function replayFile(file: string, settings: ReplaySettings, status: Status) {
  const results: CellResult[] = [];
  for (const drafter of DRAFTERS) {
    if (settings.drafter.length > 0 && !settings.drafter.includes(drafter)) continue;
    if (drafter === "history" && results.at(-1)?.returning === null) continue;
    const result = await replayCell({ ...settings, file, drafter }, status);
    results.push(result);
    if (result.full_groups > 0) {
      const groups = `${result.full_groups} groups`;
      status.note(`${file}, ${drafter}: the drafter had no room for ${groups}`);
    }
  }
  return results;
}

function replayCell(
  { file, drafter, limit }: Pick<ReplaySettings, "limit"> & { file: string; drafter: DrafterKind },
  status: Status,
): Promise<CellResult> {
  const options = {
    file,
    drafter,
    budget: BUDGET,
    probabilityMin: PROBABILITY_MIN,
    live: LIVE,
  };
  return runCell(readGroups(file, limit), options, (tokens) => {
    const text = () => `${file}, ${drafter}: ${formatCount(tokens)} tokens`;
    status.show(() => [text()], text);
  });
}

/** The engine's step times of --engine-steps; null: none were given. @throws AppError usage. */
function engineOf(text: string | null): EngineSteps | null {
  if (text === null) return null;
  const [batch = 0, stepMs = 0, rowUs = -1, ...more] = text.split(",").map(Number);
  const isFit = Number.isInteger(batch) && batch >= 1 && stepMs > 0 && rowUs >= 0;
  if (isFit && Number.isFinite(stepMs + rowUs) && more.length === 0) {
    return { batch, stepMs, rowUs };
  }
  const what = "REQUESTS,MS,US: a whole number from 1, a time above 0, and one from 0";
  throw new AppError("usage", `--engine-steps is "${text}"; it is ${what}`);
}

const HEAD = [
  "drafter",
  "accepted + 1",
  "95 % interval",
  "drafted/step",
  "accepted/drafted",
  "drafting us/token",
];

function fileTable(
  file: string,
  results: readonly CellResult[],
  engine: EngineSteps | null,
): string {
  const [first] = results;
  if (first === undefined) return basename(file);
  const { groups, responses, tokens } = first;
  const size = `${formatCount(groups)} groups, ${formatCount(responses)} responses, ${formatCount(tokens)} tokens`;
  const title = `${basename(file)}: ${size}`;
  const rows = results.map((result) => [
    result.drafter,
    result.accepted_plus_1.toFixed(3),
    result.ci95?.map((bound) => bound.toFixed(3)).join(" - ") ?? "-",
    result.drafted_per_step.toFixed(2),
    result.accepted_per_drafted.toFixed(3),
    result.us_per_token.toFixed(2),
    ...(result.returning === null ? [] : [result.returning.accepted_plus_1.toFixed(3)]),
    ...(engine === null ? [] : [times(speedUp(result, engine))]),
  ]);
  const head = [...HEAD, ...(first.returning === null ? [] : ["seen prompts"])];
  if (engine !== null) head.push("speed-up");
  const table = textTable(head, rows);
  return `${title}\n${table}\n${verdictOf(results, engine)}`;
}

const times = (ratio: number): string => `${ratio.toFixed(2)}x`;

/** Whether drafting pays, for the best of the results. */
function verdictOf(results: readonly CellResult[], engine: EngineSteps | null): string {
  const gain = (result: CellResult) =>
    engine === null ? result.accepted_plus_1 : speedUp(result, engine);
  const [best] = results.toSorted((a, b) => gain(b) - gain(a));
  if (best === undefined || best.accepted_plus_1 <= 1) {
    return "verdict: drafting does not pay on any engine: no token was accepted";
  }
  const { drafter, accepted_plus_1: tokens, drafted_per_step: drafted } = best;
  if (engine === null) {
    return `verdict: drafting (${drafter}) pays where a step that verifies ${drafted.toFixed(2)} draft tokens for each request
takes less than ${times(tokens)} the time of a plain step; if verification cost nothing, it would be ${times(tokens)} as fast.
For a figure on your engine: --engine-steps.`;
  }
  const { batch, stepMs, rowUs } = engine;
  const pays = gain(best) > 1 ? "pays" : "does not pay";
  return `verdict: drafting ${pays}: ${times(gain(best))} the decoding speed (${drafter}) with ${batch} requests, ${stepMs} ms a step and ${rowUs} us a row`;
}
