// The closing tables of `foretoken replay`: one for each file, and how far its probabilities can be
// believed. It formats results and computes nothing.

import { basename } from "node:path";
import type { ReliabilityBin } from "../tools/replay/calibration.ts";
import type { CellResult } from "../tools/replay/cell.ts";
import { type EngineSteps, speedUp } from "../tools/replay/verdict.ts";
import { formatCount } from "./format.ts";

const HEAD = [
  "drafter",
  "mode",
  "siblings",
  "accepted + 1",
  "95 % interval",
  "drafted/step",
  "accepted/drafted",
  "drafting us/token",
  "min p",
  "calibration error",
];
const SPEED_UP = "speed-up";
/** Columns of words; the others hold numbers. */
const LEFT = 2;

/** `engine`: to give the speed-up on it; null: none. Without a line end at the end. */
export function replayTable(results: readonly CellResult[], engine: EngineSteps | null): string {
  const files = [...new Set(results.map((result) => result.file))];
  return files
    .map((file) =>
      fileTable(
        file,
        results.filter((result) => result.file === file),
        engine,
      ),
    )
    .join("\n\n");
}

function fileTable(
  file: string,
  results: readonly CellResult[],
  engine: EngineSteps | null,
): string {
  const head = engine === null ? HEAD : [...HEAD, SPEED_UP];
  const rows = results.map((result) =>
    engine === null ? rowOf(result) : [...rowOf(result), times(speedUp(result, engine))],
  );
  const reliability = results.filter((result) => result.reliability.length > 0).map(reliabilityOf);
  const lines = [titleOf(file, results), ...aligned([head, ...rows])];
  if (reliability.length > 0) {
    lines.push("", "estimated acceptance probability: observed frequency", ...aligned(reliability));
  }
  return [...lines, "", ...verdictLines(results, engine)].join("\n");
}

const times = (ratio: number): string => `${ratio.toFixed(2)}x`;

/** Whether drafting pays, for the best of the results. */
function verdictLines(results: readonly CellResult[], engine: EngineSteps | null): string[] {
  const gain = (result: CellResult) =>
    engine === null ? result.accepted_plus_1 : speedUp(result, engine);
  const best = results.toSorted((a, b) => gain(b) - gain(a))[0];
  if (best === undefined) return [];
  const { drafter, mode, siblings, accepted_plus_1: tokens, drafted_per_step: drafted } = best;
  const name = `${drafter}, ${mode}, ${siblings} siblings`;
  if (tokens <= 1) return [`verdict: drafting does not pay on any engine: no token was accepted`];
  if (engine === null) {
    return [
      `verdict: drafting (${name}) pays where a step that verifies ${drafted.toFixed(2)} draft tokens for each request`,
      `takes less than ${times(tokens)} the time of a plain step; if verification cost nothing, it would be ${times(tokens)} as fast.`,
      "For a figure on your engine: --engine-steps.",
    ];
  }
  const { batch, stepMs, rowUs } = engine;
  const ratio = gain(best);
  const verdict =
    ratio > 1 ? `drafting pays: ${times(ratio)}` : `drafting does not pay: ${times(ratio)}`;
  return [
    `verdict: ${verdict} the decoding speed (${name}) with ${batch} requests, ${stepMs} ms a step and ${rowUs} us a row`,
  ];
}

function titleOf(file: string, results: readonly CellResult[]): string {
  const largest = results.reduce<CellResult | null>(
    (most, result) => (most === null || result.tokens > most.tokens ? result : most),
    null,
  );
  if (largest === null) return basename(file);
  const { groups, responses, tokens, budget, live } = largest;
  const size = `${formatCount(groups)} groups, ${formatCount(responses)} responses, ${formatCount(tokens)} tokens`;
  return `${basename(file)}: ${size}; budget ${budget}, ${live} live`;
}

function rowOf(result: CellResult): string[] {
  const { ci95, ece } = result;
  return [
    result.drafter,
    result.mode,
    String(result.siblings),
    result.accepted_plus_1.toFixed(3),
    ci95 === null ? "-" : `${ci95[0].toFixed(3)} - ${ci95[1].toFixed(3)}`,
    result.drafted_per_step.toFixed(2),
    result.accepted_per_drafted.toFixed(3),
    result.us_per_token.toFixed(2),
    result.probability_min.toFixed(3),
    ece === null ? "-" : ece.toFixed(3),
  ];
}

/** Bins of the report that make one of the four columns. */
const QUARTERS = [0, 0.25, 0.5, 0.75] as const;

function reliabilityOf(result: CellResult): string[] {
  const name = [result.drafter, result.mode, String(result.siblings)];
  const quarters = QUARTERS.map((from) => {
    const bins = result.reliability.filter((bin) => bin.from >= from && bin.from < from + 0.25);
    return quarterOf(bins);
  });
  return [...name, ...quarters];
}

function quarterOf(bins: readonly ReliabilityBin[]): string {
  let count = 0;
  let probability = 0;
  let accepted = 0;
  for (const bin of bins) {
    count += bin.count;
    probability += bin.count * bin.probability;
    accepted += bin.count * bin.accepted;
  }
  if (count === 0) return "-";
  return `${(probability / count).toFixed(3)}: ${(accepted / count).toFixed(3)}`;
}

function aligned(rows: readonly (readonly string[])[]): string[] {
  const columns = Math.max(...rows.map((row) => row.length));
  const widths = Array.from({ length: columns }, (_, i) =>
    Math.max(...rows.map((row) => (row[i] ?? "").length)),
  );
  return rows.map((row) =>
    row
      .map((cell, i) => (i < LEFT ? cell.padEnd(widths[i] ?? 0) : cell.padStart(widths[i] ?? 0)))
      .join("  ")
      .trimEnd(),
  );
}
