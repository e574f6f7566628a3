// What more could be drafted on recorded responses than `foretoken replay` says, which reads the same files:
//
//   bun bench/lab/replay.ts TRACE... [--drafter NAME,...] [--drafted N] [--limit N] [--budget 16]
//       [--probability-min 0.1] [--report FILE.json]
//
// self drafts a path from a response's own prompt and text; grouped a path and tree a tree, from its siblings too, of 8
// groups at a time. late drafts as grouped, but from what was known a step before, as the plugin under vLLM's second model
// runner. history drafts from earlier groups of the prompt too: "seen prompts" and "their first" are of groups that have
// some, and of their first 64 tokens. copies and oracle know what comes: the longest continuation of the last token in the
// group's text, and every token that has followed the one before it in any text. The columns of these names are accepted
// + 1, had each draft as many tokens, but theirs. drafted: tokens that each drafter drafts a step, to compare what they
// accept at equal cost of verification.

import { basename } from "node:path";
import { parseArgs } from "node:util";
import { formatCount } from "../../src/cli/format.ts";
import { textTable } from "../../src/cli/output.ts";
import { readGroups } from "../../src/tools/replay/recordings.ts";
import { helpFrom, writeReport } from "../harness.ts";
import { type LabCell, labCell, runEqual } from "./replay/cell.ts";
import { FIRST_TOKENS, LAB_DRAFTERS, type LabDrafter } from "./replay/foresight.ts";

const OPTIONS = {
  drafter: { type: "string" },
  drafted: { type: "string" },
  limit: { type: "string" },
  budget: { type: "string", default: "16" },
  "probability-min": { type: "string", default: "0.1" },
  report: { type: "string" },
} as const;
/** Groups that are generated at the same time. */
const LIVE = 8;

async function main(args: string[]): Promise<void> {
  const { values, positionals } = parseArgs({ args, options: OPTIONS, allowPositionals: true });
  const wanted = values.drafter?.split(",") ?? LAB_DRAFTERS;
  const unknown = wanted.find((name) => !LAB_DRAFTERS.some((one) => one === name));
  if (unknown !== undefined) {
    throw new Error(`--drafter names ${unknown}; it is one of ${LAB_DRAFTERS.join(", ")}`);
  }
  const results: LabCell[] = [];
  for (const file of positionals) {
    const ofFile: LabCell[] = [];
    for (const drafter of LAB_DRAFTERS) {
      if (!wanted.includes(drafter)) continue;
      if (drafter === "history" && ofFile.at(-1)?.returning === null) continue;
      ofFile.push(await cellOf(file, drafter, values));
    }
    results.push(...ofFile);
    console.log(tableOf(file, ofFile));
  }
  writeReport(values.report, { results });
}

interface Flags {
  readonly drafted?: string;
  readonly limit?: string;
  readonly budget: string;
  readonly "probability-min": string;
}

function cellOf(file: string, drafter: LabDrafter, flags: Flags): Promise<LabCell> {
  const limit = flags.limit === undefined ? null : Number(flags.limit);
  const run = (probabilityMin: number): Promise<LabCell> => {
    const options = { file, drafter, probabilityMin, budget: Number(flags.budget), live: LIVE };
    return labCell(readGroups(file, limit), options);
  };
  const isRight = drafter === "copies" || drafter === "oracle";
  return flags.drafted === undefined || isRight
    ? run(Number(flags["probability-min"]))
    : runEqual(run, Number(flags.drafted));
}

const HEAD = [
  "drafter",
  "accepted + 1",
  "95 % interval",
  "copies",
  "oracle",
  `first ${FIRST_TOKENS} tokens`,
  "drafted/step",
  "accepted/drafted",
  "calibration error",
];

function tableOf(file: string, results: readonly LabCell[]): string {
  const [first] = results;
  if (first === undefined) return basename(file);
  const { groups, responses, tokens } = first;
  const size = `${formatCount(groups)} groups, ${formatCount(responses)} responses, ${formatCount(tokens)} tokens`;
  const rows = results.map((result) => [
    result.drafter,
    result.accepted_plus_1.toFixed(3),
    result.ci95?.map((bound) => bound.toFixed(3)).join(" - ") ?? "-",
    result.copies_plus_1.toFixed(3),
    result.oracle_plus_1.toFixed(3),
    result.first_plus_1.toFixed(3),
    result.drafted_per_step.toFixed(2),
    result.accepted_per_drafted.toFixed(3),
    result.ece?.toFixed(3) ?? "-",
    ...(result.returning === null ? [] : [result.returning.accepted_plus_1.toFixed(3)]),
    ...(result.returning === null ? [] : [result.returning.first_plus_1.toFixed(3)]),
  ]);
  const head = [...HEAD, ...(first.returning === null ? [] : ["seen prompts", "their first"])];
  return `${basename(file)}: ${size}\n${textTable(head, rows)}`;
}

if (import.meta.main) {
  helpFrom(import.meta.path);
  await main(process.argv.slice(2));
}
