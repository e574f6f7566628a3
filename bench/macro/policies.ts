// Does any policy lose? `seer` against the better of `group` and `divided`, cell by cell:
//
//   npm run bench:policies -- [--models bundled,priced] [--engines 2,1] [--groups 4,8,16,64] [--kv short,ample]
//       [--rounds 5] [--simulated 8,32] [--report FILE.json]
//
// A round of a cell on embedded engines is a `foretoken rollout` of each policy, on the same prompts and seed, with others
// in each round: which responses are long decides more than any policy. Cells of few groups have more rounds: their times
// are short, and vary more. A ratio is the geometric mean over rounds of the baseline's time over seer's, with its 95 %
// t interval, against the baseline where it is lower: above 1 seer wins. Cells of `--simulated` are modelled.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { PRICED } from "../../src/cli/priced-model.ts";
import type { Round } from "../../src/cli/rounds.ts";
import { present } from "../../src/core/base/assert.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { Random } from "../../test/suite/random.ts";
import { helpFrom, writeReport } from "../harness.ts";
import { simulateCell } from "../lab/simulate/cell.ts";
import { chunkTokensOf } from "../lab/simulate/systems.ts";
import { WORKLOADS } from "../lab/simulate/workload.ts";
import { type Ratio, ratioOf } from "./vllm/statistics.ts";

const ROOT = join(import.meta.dir, "..", "..");
const OUT = join(ROOT, "out", "bench-policies");
const PROMPTS = join(OUT, "prompts.jsonl");
const SEED = 42;
const POLICIES = ["group", "divided", "seer"] as const;
/** Cells of fewer groups have rounds in proportion. */
const GROUPS_OF_ROUNDS = 16;
/** A ratio below it is a loss. */
const RATIO_MIN = 0.97;
/** Tokens of KV of an engine: a response of the bundled prompts takes 2,150 at most. */
const KV = { short: 2304, ample: 40_960 } as const;

type Times = Pick<Round, "wall_s" | "tail_s" | "cpu_s">;

interface Cell {
  readonly name: string;
  readonly wall: Ratio;
  readonly tail: Ratio;
  /** NaN: simulated. */
  readonly cpu: Ratio;
}

type Rounds = Record<(typeof POLICIES)[number], Times[]>;

function cellOf(name: string, rounds: Rounds): Cell {
  const ratio = (key: keyof Times): Ratio => {
    const times = (policy: keyof Rounds) => rounds[policy].map((round) => round[key]);
    const group = ratioOf(times("group"), times("seer"));
    const divided = ratioOf(times("divided"), times("seer"));
    return group.mean < divided.mean ? group : divided;
  };
  return { name, wall: ratio("wall_s"), tail: ratio("tail_s"), cpu: ratio("cpu_s") };
}

/** `flags`: of `foretoken rollout`, those of the cell. */
async function embedded(name: string, flags: readonly string[], rounds: number): Promise<Cell> {
  const times: Rounds = { group: [], divided: [], seer: [] };
  const lines = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8")
    .trim()
    .split("\n");
  for (let seed = SEED; seed < SEED + rounds; seed += 1) {
    const random = new Random(seed, "prompts");
    const keyed = lines.map((line) => ({ line, key: random.uniform() }));
    const shuffled = keyed.sort((a, b) => a.key - b.key).map(({ line }) => line);
    writeFileSync(PROMPTS, shuffled.join("\n"));
    for (const policy of [...POLICIES.slice(seed % 3), ...POLICIES.slice(0, seed % 3)]) {
      const round = [...flags, "--seed", String(seed), "--policy", policy];
      times[policy].push(await run(`${name}-${seed}-${policy}`, round));
    }
  }
  return cellOf(name, times);
}

async function run(name: string, flags: readonly string[]): Promise<Round> {
  const report = join(OUT, `${name.replaceAll(/\W+/g, "-")}.json`);
  const files = ["--out", join(OUT, "responses.jsonl"), "--report", report, "--quiet"];
  const tool = [process.execPath, join(ROOT, "src", "main.ts"), "rollout", PROMPTS];
  const child = Bun.spawn([...tool, ...flags, ...files], { cwd: ROOT, stdout: "ignore" });
  if ((await child.exited) !== 0) throw new Error(`${name} failed`);
  const { runs } = JSON.parse(readFileSync(report, "utf8")) as {
    runs: Record<string, { rounds: Round[] }>;
  };
  return present(Object.values(runs)[0]?.rounds[0], "it ran");
}

/** The Qwen2-VL workload of the paper on so many engines, with groups in proportion, or a quarter of them. */
async function simulated(engines: number, kv: keyof typeof KV, seeds: number): Promise<Cell> {
  const workload = WORKLOADS["qwen2-vl-72b"];
  const part = kv === "short" ? 1 : 1 / 4;
  const groups = Math.round((workload.shape.groups * engines * part) / workload.instances);
  const cell = { ...workload, instances: engines, shape: { ...workload.shape, groups } };
  const rounds: Rounds = { group: [], divided: [], seer: [] };
  for (const policy of POLICIES) {
    const system = policy === "group" ? "verl" : policy;
    const draft = policy === "seer" ? "grouped" : "off";
    for (let seed = 1; seed <= seeds; seed += 1) {
      const chunkTokens = chunkTokensOf(system);
      const options = {
        workload: cell,
        system,
        draft,
        seed,
        chunkTokens,
      } as const;
      const { wallS, tailS } = await simulateCell(options, loadCore());
      rounds[policy].push({ wall_s: wallS, tail_s: tailS, cpu_s: Number.NaN });
    }
  }
  return cellOf(`simulated, ${engines} engines, ${groups} groups, KV ${kv}`, rounds);
}

function tableOf(cells: readonly Cell[]): string {
  const table = new Table({
    head: ["seer against the better of group and divided", "wall", "tail", "CPU", ""],
    style: { head: [], border: [] },
    colAligns: ["left", "right", "right", "right", "left"],
  });
  for (const { name, wall, tail, cpu } of cells) {
    const verdict = Math.min(wall.mean, tail.mean) < RATIO_MIN ? "loses" : "";
    table.push([name, textOf(wall), textOf(tail), textOf(cpu), verdict]);
  }
  return table.toString();
}

function textOf({ mean, low, high }: Ratio): string {
  if (Number.isNaN(mean)) return "-";
  const interval =
    low === null || high === null ? "" : ` (${low.toFixed(2)} to ${high.toFixed(2)})`;
  return `${mean.toFixed(3)}${interval}`;
}

async function main(): Promise<void> {
  helpFrom(import.meta.path);
  const { values } = parseArgs({
    options: {
      models: { type: "string", default: "bundled,priced" },
      engines: { type: "string", default: "2,1" },
      groups: { type: "string", default: "4,8,16,64" },
      kv: { type: "string", default: "short,ample" },
      rounds: { type: "string", default: "5" },
      simulated: { type: "string", default: "8,32" },
      report: { type: "string" },
    },
  });
  const list = (text: string): string[] => text.split(",").filter((part) => part !== "");
  const kinds = list(values.kv).map((kv) => {
    if (kv === "short" || kv === "ample") return kv;
    throw new Error(`--kv names ${kv}; it is short or ample`);
  });
  mkdirSync(OUT, { recursive: true });
  const cells: Cell[] = [];
  const done = (cell: Cell): void => {
    cells.push(cell);
    console.error(`${cell.name}: wall ${textOf(cell.wall)}, tail ${textOf(cell.tail)}`);
  };
  for (const model of list(values.models)) {
    for (const engines of list(values.engines)) {
      for (const groups of list(values.groups)) {
        for (const kv of kinds) {
          const flags = ["--llama", engines, "--limit", groups, "--kv-tokens", String(KV[kv])];
          if (model === "priced") flags.push("--model", PRICED);
          const name = `${model}, ${engines} engine(s), ${groups} groups, KV ${kv}`;
          const rounds = Number(values.rounds) * Math.max(1, GROUPS_OF_ROUNDS / Number(groups));
          done(await embedded(name, flags, Math.ceil(rounds)));
        }
      }
    }
  }
  for (const engines of list(values.simulated)) {
    for (const kv of kinds) done(await simulated(Number(engines), kv, Number(values.rounds)));
  }
  console.log(tableOf(cells));
  writeReport(values.report, { cells });
}

if (import.meta.main) await main();
