// How fast the simulator is, and where the shape of its lengths comes from.
//
//   bun bench/macro/simulate.ts                 one iteration of each workload and system, seconds of this machine
//   bun bench/macro/simulate.ts --shape FILE... aggregates of recorded responses, as src/tools/simulate/lengths.ts holds them
//   bun bench/macro/simulate.ts --fit NAME...   veRL on the paper's workloads as each fitted constant is moved, its
//                                               published figures in brackets; the slowdown meets the total time
//   bun bench/macro/simulate.ts --pull NAME...  what moving KV costs and brings
//   bun bench/macro/simulate.ts --slow NAME...  an engine that is slower than the others: placement by measured step
//                                               times over placement by requests alone; --json: as JSON

import { loadCore } from "../../src/core/wasm/load.ts";
import { readGroups } from "../../src/tools/replay/recordings.ts";
import { type Cell, simulateCell } from "../../src/tools/simulate/cell.ts";
import { h800 } from "../../src/tools/simulate/hardware.ts";
import { type Metric, PUBLISHED } from "../../src/tools/simulate/published.ts";
import type { SimulationResult } from "../../src/tools/simulate/simulation.ts";
import { chunkTokensOf } from "../../src/tools/simulate/systems.ts";
import {
  WORKLOAD_NAMES,
  WORKLOADS,
  type Workload,
  type WorkloadName,
} from "../../src/tools/simulate/workload.ts";

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
export async function measureSpeed(workloads: readonly Workload[]): Promise<SpeedRow[]> {
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
      const result = await simulateCell(
        {
          workload,
          system,
          draft,
          seed: 1,
          chunkTokens: chunkTokensOf(system),
          isRecorded: false,
        },
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

/** The probabilities that src/tools/simulate/lengths.ts has quantiles for. */
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

interface Fitted {
  readonly slowdown: number;
  readonly runs: readonly SimulationResult[];
}

/** veRL over the seeds, with the slowdown that meets the published total time. */
async function fitted(workload: Workload): Promise<Fitted> {
  const core = loadCore();
  const wantedS = publishedOf(workload.name, "wall_s");
  let { slowdown } = workload.constants;
  for (let round = 0; ; round += 1) {
    const tried = { ...workload, constants: { ...workload.constants, slowdown } };
    const runs: SimulationResult[] = [];
    for (let seed = 1; seed <= SEEDS; seed += 1) {
      runs.push(await simulateCell({ ...VERL, workload: tried, seed }, core));
    }
    const ratio = wantedS / mean(runs.map((run) => run.wallS));
    if (Math.abs(ratio - 1) < 0.004 || round === 5) return { slowdown, runs };
    slowdown *= ratio ** 1.1;
  }
}

const VERL = { system: "verl", draft: "off", chunkTokens: 1, isRecorded: false } as const;

function publishedOf(workload: string, metric: Metric): number {
  const found = PUBLISHED.find((cell) => cell.workload === workload && cell.metric === metric);
  return found?.value ?? Number.NaN;
}

/** One constant is moved at a time, beginning with those that the workload has. */
async function printFit(names: readonly WorkloadName[]): Promise<void> {
  for (const name of names) {
    const workload = WORKLOADS[name];
    const { shape } = workload;
    await printFitted("as it is", workload);
    for (const share of [0.6, 0.7, 0.8, 0.9]) {
      await printFitted(`memory ${share}`, { ...workload, hardware: h800(share) });
    }
    for (const spread of [0.95, 1.1, 1.2, 1.3, 1.5]) {
      await printFitted(`spread ${spread}`, { ...workload, shape: { ...shape, spread } });
    }
    for (const correlation of [0.78, 0.86, 0.9, 0.95, 0.99]) {
      await printFitted(`correlation ${correlation}`, {
        ...workload,
        shape: { ...shape, correlation },
      });
    }
  }
}

async function printFitted(what: string, workload: Workload): Promise<void> {
  const { slowdown, runs } = await fitted(workload);
  const figure = (metric: Metric, value: (run: SimulationResult) => number, digits: number) => {
    const published = publishedOf(workload.name, metric);
    const text = mean(runs.map(value)).toFixed(digits);
    return Number.isNaN(published) ? "" : `, ${metric} ${text} (${published.toFixed(digits)})`;
  };
  console.log(
    `${workload.name}, ${what}: slowdown ${slowdown.toFixed(2)}`.concat(
      figure("wall_s", (run) => run.wallS, 0),
      figure("tail_s", (run) => run.tailS, 0),
      figure("preemptions", (run) => run.preemptions, 0),
      figure("idle_share", (run) => run.idleShare, 2),
      figure("finish_spread", (run) => run.finishSpread, 2),
      figure("late_start", (run) => run.lateStartShare, 2),
    ),
  );
}

const PULL_SEEDS = [1, 2, 3];

/** Of a node's link to the pool: what loading KV ahead of its time could bring at most, and what slow storage costs. */
const LINKS = {
  "no time": { poolBytesPerMs: 1e15, poolLatencyMs: 0 },
  "four SSDs": { poolBytesPerMs: 24e6, poolLatencyMs: 1 },
  "one SSD": { poolBytesPerMs: 6e6, poolLatencyMs: 1 },
};

/** The systems that move KV: with their chunks and short ones; and over other links. */
async function printPull(names: readonly WorkloadName[]): Promise<void> {
  for (const name of names) {
    const workload = WORKLOADS[name];
    for (const system of ["divided", "seer", "foretoken"] as const) {
      for (const chunkTokens of [chunkTokensOf(system), 512]) {
        await printPulled(`chunks of ${chunkTokens}`, { workload, system, chunkTokens });
      }
      for (const [link, speed] of Object.entries(LINKS)) {
        const slower = { ...workload, hardware: { ...workload.hardware, ...speed } };
        const chunkTokens = chunkTokensOf(system);
        await printPulled(`transfers take ${link}`, { workload: slower, system, chunkTokens });
      }
    }
  }
}

async function printPulled(
  what: string,
  cell: Pick<Cell, "workload" | "system" | "chunkTokens">,
): Promise<void> {
  const runs = await overSeeds(cell);
  const of = (value: (run: SimulationResult) => number) => mean(runs.map(value));
  const times = `wall ${of((run) => run.wallS).toFixed(0)} s, tail ${of((run) => run.tailS).toFixed(0)} s`;
  const moved = `${(of((run) => run.migratedBytes) / 1e12).toFixed(1)} TB`;
  console.log(`${cell.workload.name}, ${cell.system}, ${what}: ${times}, moved ${moved}`);
}

async function overSeeds(
  cell: Pick<Cell, "workload" | "system" | "chunkTokens" | "isPaced">,
): Promise<SimulationResult[]> {
  const core = loadCore();
  const runs: SimulationResult[] = [];
  for (const seed of PULL_SEEDS) {
    runs.push(await simulateCell({ ...cell, seed, draft: "off", isRecorded: false }, core));
  }
  return runs;
}

/** Of the engines, and how many times longer their steps take. */
const SLOW = [
  { part: 0, factor: 1 },
  { part: 1 / 32, factor: 2 },
  { part: 1 / 8, factor: 1.5 },
  { part: 1 / 8, factor: 2 },
  { part: 1 / 8, factor: 4 },
  { part: 1 / 2, factor: 2 },
];

interface SlowRow {
  readonly workload: string;
  readonly system: string;
  readonly slow: { instances: number; of: number; factor: number };
  /** Times with placement by requests alone over those with placement by step times: means of seeds. */
  readonly wall_ratio: number;
  readonly tail_ratio: number;
}

async function measureSlow(names: readonly WorkloadName[]): Promise<SlowRow[]> {
  const rows: SlowRow[] = [];
  for (const name of names) {
    const { instances } = WORKLOADS[name];
    for (const { part, factor } of SLOW) {
      const slow = { instances: Math.round(part * instances), factor };
      if (part > 0 && slow.instances === 0) continue;
      for (const system of ["divided", "foretoken"] as const) {
        const workload = { ...WORKLOADS[name], slow };
        const chunkTokens = chunkTokensOf(system);
        const counted = await overSeeds({ workload, system, chunkTokens, isPaced: false });
        const paced = await overSeeds({ workload, system, chunkTokens });
        const ratio = (key: "wallS" | "tailS") =>
          mean(counted.map((run, i) => run[key] / (paced[i]?.[key] ?? 0)));
        rows.push({
          ...{ workload: name, system, slow: { ...slow, of: instances } },
          wall_ratio: ratio("wallS"),
          tail_ratio: ratio("tailS"),
        });
      }
    }
  }
  return rows;
}

async function printSlow(names: readonly WorkloadName[], isJson: boolean): Promise<void> {
  const rows = await measureSlow(names);
  if (isJson) {
    console.log(JSON.stringify({ simulated: true, seeds: PULL_SEEDS.length, rows }, null, 2));
    return;
  }
  for (const { workload, system, slow, wall_ratio: wall, tail_ratio: tail } of rows) {
    const which = `${slow.instances} of ${slow.of} engines ${slow.factor} times slower`;
    const ratios = `wall ${wall.toFixed(3)}, tail ${tail.toFixed(2)}`;
    console.log(`${workload}, ${system}, ${which}: by requests / by step times: ${ratios}`);
  }
}

async function main(args: readonly string[]): Promise<void> {
  if (args[0] === "--fit") {
    const named = WORKLOAD_NAMES.filter((name) => args.includes(name));
    return printFit(named.length === 0 ? WORKLOAD_NAMES : named);
  }
  if (args[0] === "--pull") {
    const named = WORKLOAD_NAMES.filter((name) => args.includes(name));
    return printPull(named.length === 0 ? WORKLOAD_NAMES : named);
  }
  if (args[0] === "--slow") {
    const named = WORKLOAD_NAMES.filter((name) => args.includes(name));
    return printSlow(named.length === 0 ? WORKLOAD_NAMES : named, args.includes("--json"));
  }
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
  for (const row of await measureSpeed(WORKLOAD_NAMES.map((name) => WORKLOADS[name]))) {
    const name = `${row.workload}, ${row.system}, drafts ${row.draft}`;
    const tokens = `${(row.tokens / 1e6).toFixed(0)} M tokens`;
    console.log(
      `${name}: ${row.wallS.toFixed(2)} s for ${tokens}, ${row.simulatedS.toFixed(0)} simulated s`,
    );
  }
}

if (import.meta.main) await main(process.argv.slice(2));
