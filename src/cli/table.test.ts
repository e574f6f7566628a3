import { expect, test } from "bun:test";
import { stripVTControlCharacters } from "node:util";
import { POOL_FIGURES, ROLLOUT_FIGURES, sumsOf, WORKER_FIGURES } from "../core/rollout/figures.ts";
import type { WorkerReport } from "../core/rollout/meter.ts";
import type { RoundsReport, Runs } from "./rounds.ts";
import * as tables from "./table.ts";

// Tests may run on a terminal with colours.
const comparisonTable = (runs: Runs) => stripVTControlCharacters(tables.comparisonTable(runs));
const { describeRatio } = tables;

function workerOf(worker: number): WorkerReport {
  return {
    ...sumsOf(WORKER_FIGURES, []),
    worker,
    busy_share: 0.93 - worker * 0.01,
    idle_tail_s: worker * 0.5,
    output_tokens: 17_664,
    prefill_tokens: 900,
    recomputed_tokens: 1200,
    preemptions: 31,
    steps: 4000,
    drafted_tokens: 100,
    accepted_tokens: 60,
    kv_tokens_peak: 4000,
    kv_tokens: 4096,
    draft_share: 0.02,
  };
}

/** Figures that no test names are 0. */
function runOf(overrides: Partial<RoundsReport> = {}): RoundsReport {
  const { wall_s = 17.84, tail_s = 8.31 } = overrides;
  const none = { ...sumsOf(ROLLOUT_FIGURES, []), ...sumsOf(WORKER_FIGURES, []) };
  const run: Partial<RoundsReport> = {
    ...none,
    rounds: [{ wall_s, tail_s, cpu_s: 2 * wall_s, engine_s: wall_s - 1, others_cpu_share: 0 }],
    draft: "off",
    groups: 16,
    requests: 128,
    finished_requests: 128,
    output_tokens: 35_328,
    output_tokens_per_s: 1980.3,
    preemptions: 62,
    recomputed_tokens: 21_340,
    chunks: 128,
    mean_acceptance_length: 1,
    tokens_per_step: 1,
    kv_pool: { ...sumsOf(POOL_FIGURES, []), memory_bytes_peak: 0, disk_bytes_peak: 0 },
    workers: [workerOf(0), workerOf(1)],
    ...overrides,
  };
  return run as RoundsReport;
}

const group = runOf();
const seer = runOf({
  policy: "seer",
  draft: "grouped",
  wall_s: 12.3,
  tail_s: 2.2,
  output_tokens_per_s: 2872.2,
  preemptions: 0,
  recomputed_tokens: 2134,
  migrations: 72,
  migrated_bytes: 41e6,
  drafted_tokens: 21_000,
  accepted_tokens: 13_400,
  mean_acceptance_length: 2.31,
  tokens_per_step: 1.62,
  kv_pool: { ...runOf().kv_pool, memory_bytes_peak: 23.1e6, hits: 70, misses: 2 },
  workers: [workerOf(0), workerOf(1)].map((worker) => ({ ...worker, steps: 3000 })),
});

/** The cells of the row with this name, split where columns part. */
function row(table: string, name: string): string[] {
  const line = table.split("\n").find((one) => one.startsWith(name));
  return line === undefined ? [] : line.slice(name.length).trim().split(/ {2,}/);
}

test("comparisonTable: one run: shows the report, in the units people read", () => {
  const table = comparisonTable({ seer });
  expect(table).toContain("16 groups, 128 responses");
  expect(row(table, "wall time")).toEqual(["12.3 s"]);
  expect(row(table, "tail time (last 10 %)")).toEqual(["2.20 s"]);
  expect(row(table, "output tokens/s")).toEqual(["2,872"]);
  expect(table).not.toContain("from the journal");
  const resumed = comparisonTable({ seer: runOf({ output_tokens: 8_000, resumed_tokens: 5_000 }) });
  expect(resumed).toMatch(/output tokens +13,000\n +from the journal +5,000/);
  expect(row(table, "preemptions")).toEqual(["0"]);
  expect(row(table, "recomputed tokens")).toEqual(["2,134"]);
  expect(row(table, "migrations")).toEqual(["72 (41.0 MB)"]);
  expect(row(table, "drafted tokens")).toEqual(["21,000"]);
  expect(row(table, "accepted tokens")).toEqual(["13,400 (64%)"]);
  expect(row(table, "mean acceptance length")).toEqual(["2.31"]);
  expect(row(table, "KV pool hits / misses")).toEqual(["70 / 2"]);
  expect(row(table, "KV pool peak")).toEqual(["23.1 MB"]);
  expect(row(table, "tokens lost / twice")).toEqual(["0 / 0"]);
  expect(table).not.toContain("vs");
});

test("comparisonTable: one run: has a line for every worker", () => {
  const table = comparisonTable({ seer });
  expect(row(table, "0 ")).toEqual(["93%", "0.00 s", "17,664", "1,200", "31", "98% of 4,096"]);
  expect(row(table, "1 ")).toEqual(["92%", "0.50 s", "17,664", "1,200", "31", "98% of 4,096"]);
});

test("comparisonTable: sets every run against the first", () => {
  const table = comparisonTable({ group, seer });
  expect(row(table, " ")).toEqual(["group", "seer", "vs group"]);
  expect(row(table, "wall time")).toEqual(["17.8 s", "12.3 s", "1.45x faster"]);
  expect(row(table, "engine time (busiest)")).toEqual(["16.8 s", "11.3 s", "1.49x faster"]);
  expect(row(table, "engine steps (busiest)")).toEqual(["4,000", "3,000", "1.33x fewer"]);
  expect(row(table, "rows (busiest)")).toEqual(["18,604", "18,604", "same"]);
  expect(row(table, "tail time (last 10 %)")).toEqual(["8.31 s", "2.20 s", "3.78x faster"]);
  expect(row(table, "engine time (busiest)")).toEqual(["16.8 s", "11.3 s", "1.49x faster"]);
  expect(row(table, "output tokens/s")).toEqual(["1,980", "2,872", "1.45x more"]);
  expect(row(table, "preemptions")).toEqual(["62", "0", "none"]);
  expect(row(table, "recomputed tokens")).toEqual(["21,340", "2,134", "10.0x fewer"]);
  expect(row(table, "drafts")).toEqual(["off", "grouped"]);
});

test("comparisonTable: of several rounds it shows medians, paired ratios and their ranges", () => {
  const rounds = (...walls: number[]) =>
    walls.map((wall_s) => ({ wall_s, tail_s: 1, cpu_s: 10, engine_s: 5, others_cpu_share: null }));
  const table = comparisonTable({
    group: { ...group, rounds: rounds(10, 12, 30) },
    seer: { ...seer, rounds: rounds(5, 8, 10) },
  });
  const lines = table.split("\n").map((line) => line.split(/\s{2,}/).filter((cell) => cell !== ""));
  expect(lines).toContainEqual(["wall time", "12.0 s", "8.00 s", "2.00x faster"]);
  expect(lines).toContainEqual(["by round", "10.0 - 30.0 s", "5.00 - 10.0 s", "1.50 - 3.00"]);
});

test("comparisonTable: an interrupted run is marked and not compared", () => {
  const cut = { ...seer, interrupted: true, failed_requests: 0, finished_requests: 40 };
  const table = comparisonTable({ group, seer: cut });
  expect(table).toContain("seer (cut)");
  expect(row(table, "wall time")).toEqual(["17.8 s", "12.3 s"]);
  expect(row(table, "responses finished")).toEqual(["128 of 128", "40 of 128"]);
});

test.each([
  ["time", 10, 5, "2.00x faster"],
  ["time", 5, 10, "2.00x slower"],
  ["rate", 10, 5, "2.00x less"],
  ["rate", 5, 10, "2.00x more"],
  ["count", 50, 4, "12.5x fewer"],
  ["count", 4, 50, "12.5x more"],
  ["count", 0, 4, "from none"],
  ["count", 4, 0, "none"],
  ["count", 0, 0, "same"],
  ["time", 10, 10.04, "same"],
] as const)("describeRatio: of a %s, %d to %d is %s", (kind, from, to, text) => {
  expect(stripVTControlCharacters(describeRatio(kind, from, to))).toBe(text);
});
