// `foretoken replay`: what drafting would accept on recorded responses, one line for each drafter, and whether it pays.

import { basename } from "node:path";
import type { Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import {
  type CellOptions,
  type CellResult,
  type EngineSteps,
  runCell,
  speedUp,
} from "../tools/replay/cell.ts";
import { HEAD_SYSTEMS } from "../tools/replay/head.ts";
import { readGroups } from "../tools/replay/recordings.ts";
import { DRAFTERS } from "../tools/replay/replay.ts";
import { commandOf } from "./command.ts";
import { formatCount } from "./format.ts";
import { type Column, jsonOf, outputsOf, tableOf } from "./output.ts";
import { Status } from "./terminal.ts";

/** Content of the report file. */
export interface ReplayReport {
  readonly results: readonly CellResult[];
}

/** Limit of draft tokens per verification step. */
const BUDGET = 16;
/** Draft tokens of a response in a step, with a head: those that a server with the plugin may choose among. */
const HEAD_TOKENS = [1, 3, 7, 15];
const HEAD_PLACES_MAX = 15;
/** A server verifies as many tokens of each, whatever they are worth; the plugin's tables have none below that. */
const HEAD_PROBABILITY_MIN = 0.01;
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

With --head a table by K, the draft tokens of a response in a step at most, says
what a head of that acceptance would bring alone, what siblings would (the table
that the plugin has inside vLLM), and both, where siblings replace the head's tokens
that they know better, and go on behind its last one. The head is right as often
where siblings are as where they are not; a real one is so rather where they are.

Examples:
  $ foretoken replay out/responses.jsonl
  $ foretoken replay out/responses.jsonl --head 0.7,0.6,0.5
  $ foretoken replay out/responses.jsonl --engine-steps 64,18,40`;

export const replayCommand = commandOf({
  name: "replay",
  description: "Replay recorded responses: what drafting would have accepted, and at what cost.",
  takes: ["<traces...>", "recorded responses, grouped by prompt"],
  help: EXAMPLES,
  fields: ["limit", "drafter", "engineSteps", "head", "report", "json", "quiet"],
  run: replayFiles,
});

type Asked = Settings<"limit" | "drafter" | "engineSteps" | "head" | "report" | "json" | "quiet">;

async function replayFiles(settings: Asked, files: readonly string[]): Promise<number> {
  const { quiet } = settings;
  const engine = engineOf(settings.engineSteps);
  const acceptance = acceptanceOf(settings.head);
  const reportFile = outputsOf(files)("--report", settings.report);
  const status = new Status({ quiet });
  const results: CellResult[] = [];
  const tables: string[] = [];
  for (const file of files) {
    const ofFile: CellResult[] = [];
    for (const options of acceptance === null ? draftersOf(settings) : headsOf(acceptance)) {
      if (options.drafter === "history" && ofFile.at(-1)?.returning === null) continue;
      ofFile.push(await replayCell(file, { ...options, limit: settings.limit }, status));
    }
    results.push(...ofFile);
    tables.push(acceptance === null ? fileTable(file, ofFile, engine) : headTable(file, ofFile));
  }
  status.end();
  const report: ReplayReport = { results };
  reportFile?.write(jsonOf(report));
  if (settings.json) console.log(jsonOf(report));
  else if (!quiet) console.log(tables.join("\n\n"));
  return 0;
}

type Cell = Pick<CellOptions, "drafter" | "budget" | "probabilityMin" | "head">;

/** One for each drafter; "history" only where prompts come again. */
function draftersOf({ drafter: wanted }: Asked): Cell[] {
  const named = DRAFTERS.filter((name) => wanted.length === 0 || wanted.includes(name));
  return named.map((drafter) => ({ drafter, budget: BUDGET, probabilityMin: PROBABILITY_MIN }));
}

/** For each number of draft tokens: the head alone, siblings alone, both. */
function headsOf(acceptance: readonly number[]): Cell[] {
  const common = { drafter: "grouped", probabilityMin: HEAD_PROBABILITY_MIN } as const;
  return HEAD_TOKENS.flatMap((budget) =>
    HEAD_SYSTEMS.map((system) => ({ ...common, budget, head: { system, acceptance } })),
  );
}

async function replayCell(
  file: string,
  { limit, ...options }: Cell & { readonly limit: number | null },
  status: Status,
): Promise<CellResult> {
  const { drafter, budget, head } = options;
  const name = head === undefined ? drafter : `${head.system}, K ${budget}`;
  const groups = readGroups(file, limit);
  const result = await runCell(groups, { ...options, file, live: LIVE }, (tokens) => {
    const text = () => `${file}, ${name}: ${formatCount(tokens)} tokens`;
    status.show(() => [text()], text);
  });
  if (result.full_groups > 0) {
    status.note(`${file}, ${name}: the drafter had no room for ${result.full_groups} groups`);
  }
  return result;
}

/** The numbers between commas in an option's value; null: none was given. @throws AppError usage: they are not `what`. */
function numbersIn(
  flag: string,
  text: string | null,
  what: string,
  isFit: (numbers: readonly number[]) => boolean,
): readonly number[] | null {
  if (text === null) return null;
  const numbers = text.split(",").map(Number);
  if (numbers.every(Number.isFinite) && isFit(numbers)) return numbers;
  throw new AppError("usage", `${flag} is "${text}"; it is ${what}`);
}

/** How often a head's first, second, ... token is right. */
function acceptanceOf(text: string | null): readonly number[] | null {
  const what = `1 to ${HEAD_PLACES_MAX} shares between commas, each above 0 and up to 1`;
  return numbersIn("--head", text, what, (shares) => {
    return shares.length <= HEAD_PLACES_MAX && shares.every((share) => share > 0 && share <= 1);
  });
}

/** The engine's step times. */
function engineOf(text: string | null): EngineSteps | null {
  const what = "REQUESTS,MS,US: a whole number from 1, a time above 0, and one from 0";
  const numbers = numbersIn("--engine-steps", text, what, (all) => {
    const [batch = 0, stepMs = 0, rowUs = -1] = all;
    return all.length === 3 && Number.isInteger(batch) && batch >= 1 && stepMs > 0 && rowUs >= 0;
  });
  if (numbers === null) return null;
  const [batch = 0, stepMs = 0, rowUs = 0] = numbers;
  return { batch, stepMs, rowUs };
}

const COLUMNS: readonly Column<CellResult>[] = [
  ["drafter", ({ drafter }) => drafter],
  ["accepted + 1", (result) => result.accepted_plus_1.toFixed(3)],
  ["95 % interval", ({ ci95 }) => ci95?.map((bound) => bound.toFixed(3)).join(" - ") ?? "-"],
  ["drafted/step", (result) => result.drafted_per_step.toFixed(2)],
  ["accepted/drafted", (result) => result.accepted_per_drafted.toFixed(3)],
  ["drafting us/token", (result) => result.us_per_token.toFixed(2)],
];

const SEEN: Column<CellResult> = [
  "seen prompts",
  ({ returning }) => returning?.accepted_plus_1.toFixed(3) ?? "",
];

/** Tokens of a response in a step (accepted + 1), by the draft tokens that it may have in one. */
function headTable(file: string, results: readonly CellResult[]): string {
  const cellOf = (budget: number, of: (typeof HEAD_SYSTEMS)[number]) =>
    results.find((one) => one.budget === budget && one.head?.system === of);
  const gainOf = (budget: number, of: (typeof HEAD_SYSTEMS)[number]) =>
    cellOf(budget, of)?.accepted_plus_1 ?? Number.NaN;
  const columns = HEAD_SYSTEMS.flatMap((system): Column<number>[] => [
    [system, (budget) => gainOf(budget, system).toFixed(3)],
    ["drafted/step", (budget) => cellOf(budget, system)?.drafted_per_step.toFixed(2) ?? ""],
  ]);
  const better = (budget: number) => Math.max(gainOf(budget, "head"), gainOf(budget, "table"));
  const table = tableOf(HEAD_TOKENS, [
    ["K", String],
    ...columns,
    ["both / better of two", (budget) => times(gainOf(budget, "both") / better(budget))],
  ]);
  return titled(file, results, table);
}

/** The table of a file's results under what the file has. */
function titled(file: string, [first]: readonly CellResult[], table: string): string {
  if (first === undefined) return basename(file);
  const size = (["groups", "responses", "tokens"] as const).map(
    (of) => `${formatCount(first[of])} ${of}`,
  );
  return `${basename(file)}: ${size.join(", ")}\n${table}`;
}

function fileTable(
  file: string,
  results: readonly CellResult[],
  engine: EngineSteps | null,
): string {
  const columns = [...COLUMNS];
  if (results[0]?.returning != null) columns.push(SEEN);
  if (engine !== null) columns.push(["speed-up", (result) => times(speedUp(result, engine))]);
  return titled(file, results, `${tableOf(results, columns)}\n${verdictOf(results, engine)}`);
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
