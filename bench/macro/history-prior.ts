// What lengths of the epoch before bring the scheduler, in simulation: each prompt's responses are drawn twice, around the same
// mean, and the longest of the one draw is the prior of the other's group (src/core/context/length-history.ts).
//
//   bun bench/macro/history-prior.ts [--workloads qwen2-vl-72b,moonlight] [--seeds 3]

import { parseArgs } from "node:util";
import Table from "cli-table3";
import type { LengthPrior } from "../../src/core/context/context.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { simulateCell } from "../../src/tools/simulate/cell.ts";
import { sampleLengths } from "../../src/tools/simulate/lengths.ts";
import type { SimulationResult } from "../../src/tools/simulate/simulation.ts";
import { chunkTokensOf, type SystemName } from "../../src/tools/simulate/systems.ts";
import { WORKLOADS, type WorkloadName } from "../../src/tools/simulate/workload.ts";

const SYSTEMS: readonly (readonly [string, SystemName, boolean])[] = [
  ["verl", "verl", false],
  ["divided", "divided", false],
  ["seer", "seer", false],
  ["seer, lengths of the epoch before", "seer", true],
  ["foretoken", "foretoken", false],
  ["foretoken, lengths of the epoch before", "foretoken", true],
  ["oracle", "oracle", false],
];

function runSeed(name: WorkloadName, seed: number): SimulationResult[] {
  const { shape, ...rest } = WORKLOADS[name];
  const size = shape.groupSize;
  const drawn = sampleLengths({ ...shape, groupSize: 2 * size }, seed);
  const workload = { ...rest, shape, lengths: drawn.map((group) => group.slice(0, size)) };
  const priors = drawn.map((group) => Math.max(...group.slice(size)));
  const lengthPrior: LengthPrior = ({ group }) => priors[group.index] ?? null;
  return SYSTEMS.map(([, system, hasPrior]) =>
    simulateCell(
      {
        ...{ workload, system, seed, draft: "off", isRecorded: false },
        chunkTokens: chunkTokensOf(system),
        ...(hasPrior && { lengthPrior }),
      },
      loadCore(),
    ),
  );
}

function main(): void {
  const { values } = parseArgs({
    options: {
      workloads: { type: "string", default: "qwen2-vl-72b,moonlight" },
      seeds: { type: "string", default: "3" },
    },
  });
  for (const name of values.workloads.split(",") as WorkloadName[]) {
    const seeds = Array.from({ length: Number(values.seeds) }, (_, i) => runSeed(name, i + 1));
    const mean = (of: (results: SimulationResult[]) => number) =>
      seeds.reduce((sum, results) => sum + of(results), 0) / seeds.length;
    const table = new Table({
      head: [name, "x veRL", "wall, s", "tail, s"],
      style: { head: [], border: [] },
    });
    for (const [i, [title]] of SYSTEMS.entries()) {
      const of = (value: (result: SimulationResult) => number) => (results: SimulationResult[]) =>
        value(results[i] as SimulationResult);
      const wall = mean(of(({ wallS }) => wallS));
      const speed = mean((results) => (results[0]?.wallS ?? 0) / (results[i]?.wallS ?? 1));
      const tail = mean(of(({ tailS }) => tailS));
      table.push([title, speed.toFixed(2), wall.toFixed(0), tail.toFixed(0)]);
    }
    console.log(table.toString());
  }
}

if (import.meta.main) main();
