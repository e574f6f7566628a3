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
import { formatCount } from "../../src/cli/format.ts";
import { type Column, tableOf } from "../../src/cli/output.ts";
import { readGroups } from "../../src/tools/replay/recordings.ts";
import { flagsOf, someOf, writeReport } from "../harness.ts";
import { type LabCell, labCell, runEqual } from "./replay/cell.ts";
import { FIRST_TOKENS, LAB_DRAFTERS, type LabDrafter } from "./replay/foresight.ts";

const FLAGS = { drafter: null, drafted: 0, limit: 0, budget: 16, probabilityMin: 0.1 } as const;
/** Groups that are generated at the same time. */
const LIVE = 8;

const COLUMNS: readonly Column<LabCell>[] = [
  ["drafter", ({ drafter }) => drafter],
  ["accepted + 1", (cell) => cell.accepted_plus_1.toFixed(3)],
  ["95 % interval", ({ ci95 }) => ci95?.map((bound) => bound.toFixed(3)).join(" - ") ?? "-"],
  ["copies", (cell) => cell.copies_plus_1.toFixed(3)],
  ["oracle", (cell) => cell.oracle_plus_1.toFixed(3)],
  [`first ${FIRST_TOKENS} tokens`, (cell) => cell.first_plus_1.toFixed(3)],
  ["drafted/step", (cell) => cell.drafted_per_step.toFixed(2)],
  ["accepted/drafted", (cell) => cell.accepted_per_drafted.toFixed(3)],
  ["calibration error", ({ ece }) => ece?.toFixed(3) ?? "-"],
];
const SEEN_COLUMNS: typeof COLUMNS = [
  ["seen prompts", ({ returning }) => returning?.accepted_plus_1.toFixed(3) ?? ""],
  ["their first", ({ returning }) => returning?.first_plus_1.toFixed(3) ?? ""],
];

function tableFor(file: string, cells: readonly LabCell[]): string {
  const [first] = cells;
  if (first === undefined) return basename(file);
  const { groups, responses, tokens, returning } = first;
  const size = `${formatCount(groups)} groups, ${formatCount(responses)} responses, ${formatCount(tokens)} tokens`;
  const columns = [...COLUMNS, ...(returning === null ? [] : SEEN_COLUMNS)];
  return `${basename(file)}: ${size}\n${tableOf(cells, columns)}`;
}

const { drafted, limit, budget, json, files, ...flags } = flagsOf(import.meta.path, FLAGS);
const wanted = someOf("drafter", flags.drafter, LAB_DRAFTERS);
const drafters = LAB_DRAFTERS.filter((name) => wanted.includes(name));

function cellOf(file: string, drafter: LabDrafter): Promise<LabCell> {
  const run = (probabilityMin: number): Promise<LabCell> => {
    const options = { file, drafter, probabilityMin, budget, live: LIVE };
    return labCell(readGroups(file, limit || null), options);
  };
  const isRight = drafter === "copies" || drafter === "oracle";
  return drafted === 0 || isRight ? run(flags.probabilityMin) : runEqual(run, drafted);
}

const results: LabCell[] = [];
for (const file of files) {
  const cells: LabCell[] = [];
  for (const drafter of drafters) {
    if (drafter === "history" && cells.at(-1)?.returning === null) continue;
    cells.push(await cellOf(file, drafter));
  }
  results.push(...cells);
  console.log(tableFor(file, cells));
}
writeReport(json, { results });
