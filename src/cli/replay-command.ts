// `foretoken replay`: what drafting would accept on recorded responses. Reads the options, runs the cells
// of the comparison one by one, and writes the report.

import { mkdirSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { Command } from "commander";
import type { Settings } from "../config/fields.ts";
import type { Clock } from "../core/base/clock.ts";
import { AppError } from "../core/base/errors.ts";
import { Replica } from "../core/draft/replica.ts";
import {
  type CellOptions,
  type CellResult,
  runCell,
  type Threshold,
} from "../tools/replay/cell.ts";
import { DRAFTER_KINDS, REPLAY_MODES } from "../tools/replay/replay.ts";
import { TraceSource } from "../tools/replay/source.ts";
import { RESPONSES_MAX } from "../tools/replay/trace.ts";
import type { EngineSteps } from "../tools/replay/verdict.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { readGroups } from "./replay-files.ts";
import { ReplayProgress } from "./replay-progress.ts";
import { replayTable } from "./replay-table.ts";

const FIELD_NAMES = [
  "drafter",
  "siblings",
  "mode",
  "draftedPerStep",
  "live",
  "limit",
  "engineSteps",
  "report",
  "json",
  "quiet",
] as const;

export type ReplaySettings = Settings<(typeof FIELD_NAMES)[number]>;

/** The report file. */
export interface ReplayReport {
  readonly results: readonly CellResult[];
}

/** Draft tokens per verification step, at most. */
const BUDGET = 16;
/** A token with less is not drafted. */
const PROBABILITY_MIN = 0.1;
/** Relative distance from the given cost above which the comparison is reported as not at equal cost. */
const COST_TOLERANCE = 0.02;

const EXAMPLES = `
TRACES are responses as \`foretoken rollout\` writes them (*.jsonl: group, index,
token_ids and, if known, prompt_token_ids; lines of a group beside one another),
or traces (*.json); each may be gzipped (*.gz).

Examples:
  $ foretoken replay out/responses.jsonl
  $ foretoken replay out/responses.jsonl --engine-steps 64,18,40
  $ foretoken replay out/responses.jsonl --siblings 0,1,3,7 \\
      --mode concurrent,complete --drafted-per-step 4`;

const wallClock: Clock = { nowMs: () => performance.now() };

/** CPU time of this thread: other processes on the machine do not count as drafting. */
export const cpuClock: Clock = {
  nowMs: () => {
    const { user, system } = process.threadCpuUsage();
    return (user + system) / 1000;
  },
};

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

async function replayFiles(traces: readonly string[], settings: ReplaySettings): Promise<void> {
  const engine = engineOf(settings);
  const report = await replayReport(traces, settings);
  if (settings.report !== null) writeReport(settings.report, report);
  if (settings.json) console.log(JSON.stringify(report, null, 2));
  else if (!settings.quiet) console.log(replayTable(report.results, engine));
  for (const warning of settings.quiet ? [] : warningsOf(report)) console.error(warning);
}

/** Runs every cell. Throws AppError `usage`, `invalid_json` or `invalid_field`. */
async function replayReport(
  traces: readonly string[],
  settings: ReplaySettings,
): Promise<ReplayReport> {
  const cells = cellsOf(settings);
  const progress = new ReplayProgress({
    stream: process.stderr,
    env: process.env,
    quiet: settings.quiet,
    clock: wallClock,
    cells: cells.length * traces.length,
  });
  const results: CellResult[] = [];
  try {
    for (const file of traces) {
      const source = new TraceSource({
        open: () => readGroups(file),
        groupsMax: settings.limit,
      });
      const ofFile: CellResult[] = [];
      for (const cell of cells) {
        progress.begin(`${file}, ${cell.drafter}, ${cell.mode}`);
        ofFile.push(
          alike(cell, ofFile) ??
            (await runCell(
              source,
              { file, ...cell },
              {
                newDrafter: () => new Replica(),
                clock: cpuClock,
                onRound: (pass, tokens) => progress.update(pass, tokens),
              },
            )),
        );
      }
      results.push(...ofFile);
    }
  } finally {
    progress.finish();
  }
  return { results };
}

/** null: no step times were given. */
function engineOf({ engineSteps: text }: ReplaySettings): EngineSteps | null {
  if (text === null) return null;
  const [batch = 0, stepMs = 0, rowUs = -1, ...more] = text.split(",").map(Number);
  const isFit = Number.isInteger(batch) && batch >= 1 && stepMs > 0 && rowUs >= 0;
  if (isFit && Number.isFinite(stepMs + rowUs) && more.length === 0)
    return { batch, stepMs, rowUs };
  const what = "REQUESTS,MS,US: a whole number from 1, a time above 0, and one from 0";
  throw new AppError("usage", `--engine-steps is "${text}"; it is ${what}`);
}

type Cell = Omit<CellOptions, "file">;

function cellsOf(settings: ReplaySettings): Cell[] {
  const { live } = settings;
  const drafters = namesOf("--drafter", settings.drafter, DRAFTER_KINDS);
  const modes = namesOf("--mode", settings.mode, REPLAY_MODES);
  const siblings = settings.siblings === null ? [null] : countsOf(settings.siblings);
  const threshold = thresholdOf(settings);
  return modes.flatMap((mode) =>
    drafters.flatMap((drafter) =>
      siblings.map((count) => ({
        drafter,
        mode,
        siblings: count,
        budget: BUDGET,
        live,
        threshold,
      })),
    ),
  );
}

function thresholdOf({ draftedPerStep }: ReplaySettings): Threshold {
  if (draftedPerStep === null) {
    return { kind: "given", probabilityMin: PROBABILITY_MIN };
  }
  return { kind: "drafted", perStep: draftedPerStep };
}

/** A response that drafts from itself, with all others absent, does not notice how many they would be. */
function alike(cell: Cell, results: readonly CellResult[]): CellResult | null {
  if (cell.drafter !== "self" || cell.mode !== "complete") return null;
  const found = results.find(({ drafter, mode }) => drafter === "self" && mode === "complete");
  return found === undefined ? null : { ...found, siblings: cell.siblings ?? 0 };
}

function namesOf<N extends string>(flag: string, text: string, known: readonly N[]): N[] {
  const names = text.split(",").map((name) => {
    const found = known.find((one) => one === name);
    if (found !== undefined) return found;
    throw new AppError("usage", `${flag} names "${name}"; it is one of ${known.join(", ")}`);
  });
  return unlessTwice(flag, text, names);
}

function countsOf(text: string): number[] {
  const counts = text.split(",").map((part) => {
    const count = part.trim() === "" ? Number.NaN : Number(part);
    if (Number.isInteger(count) && count >= 0 && count < RESPONSES_MAX) return count;
    const bound = `a whole number between 0 and ${RESPONSES_MAX - 1}`;
    throw new AppError("usage", `--siblings names "${part}"; it is ${bound}`);
  });
  return unlessTwice("--siblings", text, counts);
}

function unlessTwice<T>(flag: string, text: string, values: T[]): T[] {
  if (new Set(values).size === values.length) return values;
  throw new AppError("usage", `${flag} is "${text}"; it names one twice`);
}

function writeReport(path: string, report: ReplayReport): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, `${JSON.stringify(report, null, 2)}\n`);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("output_failed", `--report ${path}: ${reason}`, { cause });
  }
}

function warningsOf({ results }: ReplayReport): string[] {
  const warnings: string[] = [];
  for (const result of results) {
    const { drafted_per_step: drafted, drafted_per_step_wanted: wanted, full_groups } = result;
    const name = `${result.file}, ${result.drafter}, ${result.mode}, ${result.siblings} siblings`;
    if (wanted !== null && Math.abs(drafted - wanted) > wanted * COST_TOLERANCE) {
      warnings.push(
        `${name}: ${drafted.toFixed(2)} tokens drafted a step is as near ${wanted} as it gets`,
      );
    }
    if (full_groups > 0) {
      warnings.push(`${name}: the drafter had no room for ${full_groups} groups`);
    }
  }
  return warnings;
}
