// How fast the simulator is, and where the shape of its lengths comes from.
//
//   bun bench/macro/simulate.ts                 one iteration of each workload and system, seconds of this machine
//   bun bench/macro/simulate.ts --shape FILE... aggregates of recorded responses, as src/sim/lengths.ts holds them
//   bun bench/macro/simulate.ts --fit           veRL's time on the paper's workloads, and the factor that fits it

import { readGroups } from "../../src/cli/replay-files.ts";
import { simulateCell } from "../../src/sim/cell.ts";
import { PUBLISHED } from "../../src/sim/published.ts";
import { WORKLOAD_NAMES, WORKLOADS, type Workload } from "../../src/sim/workload.ts";
import { loadCore } from "../../src/wasm/load.ts";

const CHUNK_TOKENS = 2048;
const SEEDS = 5;

export interface SpeedRow {
  readonly workload: string;
  readonly system: string;
  readonly draft: string;
  readonly tokens: number;
  readonly wallS: number;
  readonly simulatedS: number;
}

/** Wall seconds of one simulated iteration. */
export function measureSpeed(workloads: readonly Workload[]): SpeedRow[] {
  const core = loadCore();
  const rows: SpeedRow[] = [];
  for (const workload of workloads) {
    for (const [system, draft] of [
      ["verl", "off"],
      ["seer", "off"],
      ["foretoken", "off"],
      ["seer", "grouped"],
    ] as const) {
      const startMs = performance.now();
      const result = simulateCell(
        { workload, system, draft, seed: 1, chunkTokens: CHUNK_TOKENS, isRecorded: false },
        core,
      );
      const wallS = (performance.now() - startMs) / 1000;
      const { outputTokens: tokens, wallS: simulatedS } = result;
      rows.push({ workload: workload.name, system, draft, tokens, wallS, simulatedS });
    }
  }
  return rows;
}

/** Aggregates of log lengths: correlation within groups, spreads, and how unequal groups' own spreads are. */
export function shapeOf(groups: readonly (readonly number[])[]) {
  const logs = groups.filter((group) => group.length > 1).map((group) => group.map(Math.log));
  const means = logs.map((group) => mean(group));
  const size = mean(logs.map((group) => group.length));
  const ownVariances = logs.map((group, i) => {
    const centre = means[i] ?? 0;
    return group.reduce((sum, x) => sum + (x - centre) ** 2, 0) / (group.length - 1);
  });
  const within = mean(ownVariances);
  const centre = mean(means);
  const ofMeans = means.reduce((sum, x) => sum + (x - centre) ** 2, 0) / (means.length - 1);
  const between = ofMeans - within / size;
  return {
    correlation: between / (between + within),
    spread: Math.sqrt(between + within),
    groupMeans: quantiles(means.map((x) => (x - centre) / Math.sqrt(between))),
    ownSpreads: quantiles(ownVariances.map((x) => Math.sqrt(x / within))),
  };
}

/** The probabilities that src/sim/lengths.ts has quantiles for. */
const PROBABILITIES = [
  0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995,
];

function quantiles(values: readonly number[]): number[] {
  const sorted = [...values].sort((a, b) => a - b);
  return PROBABILITIES.map((p) => {
    const at = Math.min(sorted.length - 1, Math.floor(p * sorted.length));
    return Number((sorted[at] ?? 0).toFixed(2));
  });
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function printFit(): void {
  const core = loadCore();
  for (const name of WORKLOAD_NAMES) {
    const workload = WORKLOADS[name];
    const wallS = mean(
      Array.from({ length: SEEDS }, (_, i) => {
        const cell = { workload, seed: i + 1, chunkTokens: CHUNK_TOKENS, isRecorded: false };
        return simulateCell({ ...cell, system: "verl", draft: "off" }, core).wallS;
      }),
    );
    const published = PUBLISHED.find((cell) => cell.workload === name && cell.metric === "wall_s");
    const wanted = published?.value ?? Number.NaN;
    const { slowdown } = workload.constants;
    console.log(
      `${name}: veRL ${wallS.toFixed(0)} s, published ${wanted} s, slowdown ${slowdown} -> about ${((slowdown * wanted) / wallS).toFixed(2)}`,
    );
  }
}

async function main(args: readonly string[]): Promise<void> {
  if (args[0] === "--fit") return printFit();
  if (args[0] === "--shape") {
    for (const path of args.slice(1)) {
      const lengths: number[][] = [];
      for await (const group of readGroups(path)) {
        lengths.push(group.responses.map((response) => Math.max(1, response.length)));
      }
      console.log(path, JSON.stringify(shapeOf(lengths)));
    }
    return;
  }
  for (const row of measureSpeed(WORKLOAD_NAMES.map((name) => WORKLOADS[name]))) {
    const name = `${row.workload}, ${row.system}, drafts ${row.draft}`;
    const tokens = `${(row.tokens / 1e6).toFixed(0)} M tokens`;
    console.log(
      `${name}: ${row.wallS.toFixed(2)} s for ${tokens}, ${row.simulatedS.toFixed(0)} simulated s`,
    );
  }
}

if (import.meta.main) await main(process.argv.slice(2));
