// Does any policy lose? `seer` against the better of `group` and `divided`, cell by cell:
//
//   npm run bench:policies -- [--models bundled,priced] [--engines 2,1] [--groups 4,8,16,64] [--kv short,ample]
//       [--rounds 5] [--simulated 8,32] [--report FILE.json]
//
// A round of a cell on embedded engines is a `foretoken rollout` of each policy, on the same prompts and seed; other ones in
// each round, since which responses are long, and when they come, decides more than any policy. Cells of few groups have
// more rounds: their times are short, and vary more. A ratio is the geometric mean over rounds of the baseline's time
// over seer's, with its 95 % t interval, against the baseline where it is lower: above 1 seer wins. Cells of `--simulated`
// are no measurements: engines are modelled, groups a part of the paper's.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { PRICED } from "../../src/cli/priced-model.ts";
import type { Round } from "../../src/cli/rounds.ts";
import { present } from "../../src/core/base/assert.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { type SimDraft, simulateCell } from "../../src/tools/simulate/cell.ts";
import { Random } from "../../src/tools/simulate/random.ts";
import { chunkTokensOf } from "../../src/tools/simulate/systems.ts";
import { WORKLOADS } from "../../src/tools/simulate/workload.ts";
import { writeReport } from "../harness.ts";
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

interface Cell {
  readonly name: string;
  readonly wall: Ratio;
  readonly tail: Ratio;
  /** null: simulated. */
  readonly cpu: Ratio | null;
}

type Times = Pick<Round, "wall_s" | "tail_s"> & { readonly cpu_s: number | null };

/** `rounds` by policy. */
function cellOf(name: string, rounds: Readonly<Record<string, readonly Times[]>>): Cell {
  const times = (policy: string, key: keyof Times): number[] =>
    (rounds[policy] ?? []).map((round) => round[key] ?? Number.NaN);
  const ratio = (key: keyof Times): Ratio => {
    const [group, divided] = [times("group", key), times("divided", key)].map((baseline) =>
      ratioOf(baseline, times("seer", key)),
    ) as [Ratio, Ratio];
    return group.mean < divided.mean ? group : divided;
  };
  const isMeasured = rounds.seer?.every(({ cpu_s }) => cpu_s !== null) === true;
  return {
    name,
    wall: ratio("wall_s"),
    tail: ratio("tail_s"),
    cpu: isMeasured ? ratio("cpu_s") : null,
  };
}

interface EmbeddedCell {
  readonly model: string;
  readonly engines: string;
  readonly groups: string;
  readonly kv: keyof typeof KV;
}

async function embedded(name: string, cell: EmbeddedCell, rounds: number): Promise<Cell> {
  const times: Record<string, Round[]> = {};
  for (const policy of POLICIES) times[policy] = [];
  for (let round = 0; round < rounds; round += 1) {
    writeFileSync(PROMPTS, shuffled(round).join("\n"));
    for (const policy of [...POLICIES.slice(round % 3), ...POLICIES.slice(0, round % 3)])
      times[policy]?.push(await run(name, cell, { policy, seed: SEED + round }));
  }
  return cellOf(name, times);
}

async function run(
  name: string,
  cell: EmbeddedCell,
  { policy, seed }: { policy: string; seed: number },
): Promise<Round> {
  const report = join(OUT, `${name.replaceAll(/\W+/g, "-")}-${seed}-${policy}.json`);
  const model = cell.model === "priced" ? ["--model", PRICED] : [];
  const child = Bun.spawn(
    [
      ...[process.execPath, join(ROOT, "src", "main.ts"), "rollout"],
      ...[PROMPTS, "--limit", cell.groups, "--seed", String(seed), ...model],
      ...["--workers", cell.engines, "--kv-tokens", String(KV[cell.kv]), "--policy", policy],
      ...["--out", join(OUT, "responses.jsonl"), "--report", report, "--quiet"],
    ],
    { cwd: ROOT, stdin: "ignore", stdout: "ignore", stderr: "inherit" },
  );
  if ((await child.exited) !== 0) throw new Error(`${policy} failed in the cell ${name}`);
  const { runs } = JSON.parse(readFileSync(report, "utf8")) as {
    runs: Record<string, { rounds: Round[] }>;
  };
  return present(runs[policy]?.rounds[0], "it ran");
}

/** The bundled prompts in an order of the round's own. */
function shuffled(round: number): string[] {
  const lines = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8")
    .trim()
    .split("\n");
  const random = new Random(SEED + round, "prompts");
  const keyed = lines.map((line) => ({ line, key: random.uniform() }));
  return keyed.sort((a, b) => a.key - b.key).map(({ line }) => line);
}

/** The Qwen2-VL workload of the paper on so many engines, with groups in proportion, or a quarter of them. */
async function simulated(engines: number, kv: keyof typeof KV, seeds: number): Promise<Cell> {
  const workload = WORKLOADS["qwen2-vl-72b"];
  const part = kv === "short" ? 1 : 1 / 4;
  const groups = Math.round((workload.shape.groups * engines * part) / workload.instances);
  const cell = { ...workload, instances: engines, shape: { ...workload.shape, groups } };
  const rounds: Record<string, Times[]> = {};
  const systems = { group: "verl", divided: "divided", seer: "seer" } as const;
  for (const [policy, system] of Object.entries(systems)) {
    rounds[policy] = [];
    for (let seed = 1; seed <= seeds; seed += 1) {
      const draft: SimDraft = system === "seer" ? "grouped" : "off";
      const chunkTokens = chunkTokensOf(system);
      const options = { workload: cell, system, draft, seed, chunkTokens, isRecorded: false };
      const { wallS, tailS } = await simulateCell(options, loadCore());
      rounds[policy].push({ wall_s: wallS, tail_s: tailS, cpu_s: null });
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
    table.push([name, textOf(wall), textOf(tail), cpu === null ? "-" : textOf(cpu), verdict]);
  }
  return table.toString();
}

function textOf({ mean, low, high }: Ratio): string {
  const interval =
    low === null || high === null ? "" : ` (${low.toFixed(2)} to ${high.toFixed(2)})`;
  return `${mean.toFixed(3)}${interval}`;
}

async function main(): Promise<void> {
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
  const rows = list(values.models).flatMap((model) =>
    list(values.engines).flatMap((engines) =>
      list(values.groups).flatMap((groups) =>
        kinds.map((kv) => ({ model, engines, groups, kv }) as const),
      ),
    ),
  );
  for (const { model, engines, groups, kv } of rows) {
    const name = `${model}, ${engines} engine(s), ${groups} groups, KV ${kv}`;
    const rounds = Number(values.rounds) * Math.max(1, GROUPS_OF_ROUNDS / Number(groups));
    done(await embedded(name, { model, engines, groups, kv }, Math.ceil(rounds)));
  }
  for (const engines of list(values.simulated)) {
    for (const kv of kinds) done(await simulated(Number(engines), kv, Number(values.rounds)));
  }
  console.log(tableOf(cells));
  writeReport(values.report, { cells });
}

if (import.meta.main) await main();
