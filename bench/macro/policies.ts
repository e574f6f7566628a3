// Does any policy lose? `seer` against the better of `group` and `divided`, cell by cell:
//
//   npm run bench:policies -- [--models bundled,priced] [--engines 2,1] [--groups 4,8,16,64] [--kv short,ample]
//       [--rounds 3] [--report FILE.json]
//
// A cell on embedded engines is `foretoken rollout --compare group,divided,seer`, the three in turn in each round. Ratios
// are of the better one's time over seer's: above 1 seer wins. Of wall, tail and CPU time, the median over rounds of the
// ratios within a round. Small simulated cells, which it had until 1184b953, are no measurements.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { PRICED } from "../../src/cli/priced-model.ts";
import { median, type Round } from "../../src/cli/rounds.ts";
import { conditions } from "../harness.ts";

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
  readonly cpu: number;
}

type Times = Pick<Round, "wall_s" | "tail_s" | "cpu_s">;

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
  return { name, wall: ratio("wall_s"), tail: ratio("tail_s"), cpu: ratio("cpu_s") };
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
  return cellOf(
    name,
    Object.fromEntries(Object.entries(runs).map(([policy, { rounds }]) => [policy, rounds])),
  );
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      models: { type: "string", default: "bundled,priced" },
      engines: { type: "string", default: "2,1" },
      groups: { type: "string", default: "4,8,16,64" },
      kv: { type: "string", default: "short,ample" },
      rounds: { type: "string", default: "3" },
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
    const verdict = Math.min(cell.wall, cell.tail) < RATIO_MIN ? "loses" : "";
    const [wall, tail, cpu] = [cell.wall, cell.tail, cell.cpu].map((ratio) => ratio.toFixed(2));
    console.log(`${cell.name}: wall ${wall}, tail ${tail}, CPU ${cpu} ${verdict}`);
  };
  for (const model of list(values.models)) {
    for (const engines of list(values.engines)) {
      for (const groups of list(values.groups)) {
        for (const kv of kinds) {
          const name = `${model}, ${engines} engine(s), ${groups} groups, KV ${kv}`;
          done(await embedded(name, { model, engines, groups, kv, rounds: values.rounds }));
        }
      }
    }
  }
  if (values.report === undefined) return;
  mkdirSync(dirname(values.report), { recursive: true });
  writeFileSync(values.report, `${JSON.stringify({ ...conditions(), cells }, null, 1)}\n`);
}

if (import.meta.main) await main();
