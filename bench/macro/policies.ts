// Does any policy lose? `seer` against the better of `group` and `divided`, cell by cell:
//
//   npm run bench:policies -- [--models bundled,priced] [--engines 2,1] [--groups 4,8,16,64] [--kv short,ample]
//       [--rounds 3] [--simulated 8,32] [--report FILE.json]
//
// A cell on embedded engines is `foretoken rollout --compare group,divided,seer`, the three in turn in each round. Ratios
// are of the better one's time over seer's: above 1 seer wins. Of wall, tail and CPU time, the median over rounds of the
// ratios within a round. Cells of `--simulated` are no measurements: engines are modelled, groups a part of the paper's.

import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { PRICED } from "../../src/cli/priced-model.ts";
import { median, type Round } from "../../src/cli/rounds.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { type SimDraft, simulateCell } from "../../src/tools/simulate/cell.ts";
import { chunkTokensOf } from "../../src/tools/simulate/systems.ts";
import { WORKLOADS } from "../../src/tools/simulate/workload.ts";
import { writeReport } from "../harness.ts";

const ROOT = join(import.meta.dir, "..", "..");
const OUT = join(ROOT, "out", "bench-policies");
/** A ratio below it is a loss. */
const RATIO_MIN = 0.97;
/** Tokens of KV of an engine: a response of the bundled prompts takes 2,150 at most. */
const KV = { short: 2304, ample: 40_960 } as const;

interface Cell {
  readonly name: string;
  readonly wall: number;
  readonly tail: number;
  /** null: simulated. */
  readonly cpu: number | null;
}

type Times = Pick<Round, "wall_s" | "tail_s"> & { readonly cpu_s: number | null };

/** `rounds` by policy. */
function cellOf(name: string, rounds: Readonly<Record<string, readonly Times[]>>): Cell {
  const { group = [], divided = [], seer = [] } = rounds;
  const ratio = (key: keyof Times): number =>
    median(
      seer.map((round, i) => {
        const others = [group[i], divided[i]].map((other) => other?.[key] ?? Number.NaN);
        return Math.min(...others) / (round[key] ?? Number.NaN);
      }),
    );
  const isMeasured = seer.every(({ cpu_s }) => cpu_s !== null);
  return {
    name,
    wall: ratio("wall_s"),
    tail: ratio("tail_s"),
    cpu: isMeasured ? ratio("cpu_s") : null,
  };
}

async function embedded(
  name: string,
  cell: { model: string; engines: string; groups: string; kv: keyof typeof KV; rounds: string },
): Promise<Cell> {
  const report = join(OUT, `${name.replaceAll(/\W+/g, "-")}.json`);
  const model = cell.model === "priced" ? ["--model", PRICED] : [];
  const child = Bun.spawn(
    [
      ...[process.execPath, join(ROOT, "src", "main.ts"), "rollout"],
      ...[join(ROOT, "model", "prompts.jsonl"), "--limit", cell.groups, ...model],
      ...["--workers", cell.engines, "--kv-tokens", String(KV[cell.kv]), "--rounds", cell.rounds],
      ...["--compare", "group,divided,seer", "--out", join(OUT, "responses.jsonl")],
      ...["--report", report, "--quiet"],
    ],
    { cwd: ROOT, stdin: "ignore", stdout: "ignore", stderr: "inherit" },
  );
  if ((await child.exited) !== 0) throw new Error(`the cell ${name} failed`);
  const { runs } = JSON.parse(readFileSync(report, "utf8")) as {
    runs: Record<string, { rounds: Round[] }>;
  };
  const rounds = Object.entries(runs).map(([policy, run]) => [policy, run.rounds] as const);
  return cellOf(name, Object.fromEntries(rounds));
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
    const verdict = Math.min(wall, tail) < RATIO_MIN ? "loses" : "";
    table.push([name, wall.toFixed(2), tail.toFixed(2), cpu?.toFixed(2) ?? "-", verdict]);
  }
  return table.toString();
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      models: { type: "string", default: "bundled,priced" },
      engines: { type: "string", default: "2,1" },
      groups: { type: "string", default: "4,8,16,64" },
      kv: { type: "string", default: "short,ample" },
      rounds: { type: "string", default: "3" },
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
    console.error(`${cell.name}: wall ${cell.wall.toFixed(2)}, tail ${cell.tail.toFixed(2)}`);
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
    done(await embedded(name, { model, engines, groups, kv, rounds: values.rounds }));
  }
  for (const engines of list(values.simulated)) {
    for (const kv of kinds) done(await simulated(Number(engines), kv, Number(values.rounds)));
  }
  console.log(tableOf(cells));
  writeReport(values.report, { cells });
}

if (import.meta.main) await main();
