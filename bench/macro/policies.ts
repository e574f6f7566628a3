// Does the default policy lose? Iterations of the bundled model's prompts under each policy, by counted work: the production
// rollout on engines that count steps and rows, with recorded lengths. Nothing is timed: each run prints the same.
//
//   npm run bench:policies -- [--times NAME] [--engines 2,1] [--groups 4,8,16,64] [--kv short,ample] [--pool yes,no]
//       [--seeds 20] [--of POLICY] [--json FILE]
//
// A seed has prompts of its own. Work is the time of the steps of the engine that has most, by a table of measured step times
// (bench/macro/draft-length.ts has them, and what drafts bring); here none are made. `--times`: tables whose names have it.
// Pool: KV that leaves an engine comes back; without one it is computed again. Columns: work of each policy over that of
// `--of`, the default, as geometric means with 95 % t intervals over the seeds. Below 0.97 of `group` or `divided` it loses.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { textTable } from "../../src/cli/output.ts";
import { FIELDS } from "../../src/config/fields.ts";
import {
  POLICY_NAMES,
  type PolicyName,
  runNamed,
  schedulerFor,
} from "../../src/core/schedule/policies.ts";
import { loadCore } from "../../src/core/wasm/load.ts";
import { ProfiledStepCost, type StepSample } from "../../src/engines/llama/step-cost.ts";
import type { EngineTimes } from "../../src/tools/simulate/engine.ts";
import { type GroupModel, Simulation } from "../../src/tools/simulate/simulation.ts";
import { Random } from "../../test/suite/random.ts";
import { flagsOf, oneOf, someOf, writeReport } from "../harness.ts";
import { meanOf, type Ratio, ratioOf, said } from "../statistics.ts";
import { TABLES } from "./draft-length.ts";

const DEFAULT = runNamed(FIELDS.policy.default).policy;
export const BASELINES: readonly PolicyName[] = ["group", "divided"];

/** A ratio below it is a loss. */
export const RATIO_MIN = 0.97;
/** Requests that an engine runs at once, and tokens of a response at most: as `foretoken rollout` has them. */
const [SLOTS, TOKENS_MAX] = [16, 2048];
/** Tokens of KV of an engine: a response of the bundled prompts takes 2,150 at most. */
const KV = { short: 2304, ample: 40_960 } as const;
/** Rows of a step between which another row's time is a prefilled token's. */
const PREFILL_ROWS = [16, 32] as const;
/** Time of moving a token of KV, over that of computing it. */
const MOVE_COST = 1 / 32;

const DATA = join(import.meta.dirname, "../data/lengths.jsonl");
const recorded = readFileSync(DATA, "utf8")
  .trim()
  .split("\n")
  .map((line): [prompt: number, ...responses: number[]] => JSON.parse(line));

interface Cell {
  readonly name: string;
  readonly samples: readonly StepSample[];
  readonly engines: number;
  readonly groups: number;
  readonly kvTokens: number;
  readonly hasPool: boolean;
}

/** Of the slowest engine. */
interface Work {
  readonly ms: number;
  readonly steps: number;
  readonly rows: number;
}

function groupsOf(count: number, seed: number): GroupModel[] {
  const random = new Random(seed, "prompts");
  const keyed = recorded.map((lengths) => ({ lengths, key: random.uniform() }));
  const shuffled = keyed.sort((a, b) => a.key - b.key).slice(0, count);
  return shuffled.map(({ lengths: [promptTokens, ...lengths] }) => ({
    promptTokens,
    lengths,
    atMs: 0,
  }));
}

function timesOf(profile: ProfiledStepCost): EngineTimes {
  const [few, many] = PREFILL_ROWS.map((rows) => profile.ms(rows, rows)) as [number, number];
  const rowMs = (many - few) / (PREFILL_ROWS[1] - PREFILL_ROWS[0]);
  return {
    kvBytesPerToken: 1,
    stepMs: (batch, rows) => profile.ms(batch, rows),
    prefillMs: (tokens) => tokens * rowMs,
    transferMs: (tokens) => tokens * rowMs * MOVE_COST,
  };
}

const core = loadCore();

async function workOf(policy: PolicyName, cell: Cell, seed: number): Promise<Work> {
  const { samples, kvTokens, hasPool } = cell;
  const profile = new ProfiledStepCost(samples);
  const engine = {
    slots: SLOTS,
    kvTokens,
    times: timesOf(profile),
    speculation: null,
  };
  const simulation = new Simulation({
    groups: groupsOf(cell.groups, seed),
    engines: Array.from({ length: cell.engines }, () => engine),
    tokensMax: TOKENS_MAX,
    core,
    chunkTokens: null,
    reportsTokens: true,
    schedulerFor: (parts) => schedulerFor(policy, parts),
    movesKv: hasPool,
    isPaced: true,
  });
  await simulation.run();
  const counters = simulation.engines.map((one) => one.counters);
  const slowest = counters.reduce((a, b) => (b.busyMs > a.busyMs ? b : a));
  const { busyMs, steps, outputTokens, prefillTokens } = slowest;
  return { ms: busyMs, steps: Math.round(steps), rows: Math.round(outputTokens + prefillTokens) };
}

interface Row extends Pick<Cell, "name"> {
  readonly of: PolicyName;
  /** Mean over the seeds. */
  readonly work: Readonly<Record<string, Work>>;
  /** Work of each policy over that of `of`. */
  readonly over: Readonly<Record<string, Ratio>>;
}

export async function rowOf(cell: Cell, seeds: number, of: PolicyName = DEFAULT): Promise<Row> {
  const works: Record<string, Work[]> = {};
  for (const policy of POLICY_NAMES) {
    const done: Work[] = [];
    for (let seed = 1; seed <= seeds; seed += 1) done.push(await workOf(policy, cell, seed));
    works[policy] = done;
  }
  const msOf = (policy: string) => (works[policy] ?? []).map(({ ms }) => ms);
  const work = Object.fromEntries(
    Object.entries(works).map(([policy, done]) => {
      const mean = (key: keyof Work) => meanOf(done.map((one) => one[key]));
      return [policy, { ms: mean("ms"), steps: mean("steps"), rows: mean("rows") }];
    }),
  );
  const over = Object.fromEntries(
    POLICY_NAMES.map((policy) => [policy, ratioOf(msOf(policy), msOf(of))]),
  );
  return { name: cell.name, of, work, over };
}

function tableOf(rows: readonly Row[]): string {
  const cells = rows.map(({ name, of, work, over }) => {
    const isLost = BASELINES.some((other) => (over[other]?.mean ?? 1) < RATIO_MIN);
    const seconds = ((work[of]?.ms ?? 0) / 1000).toFixed(2);
    const ratios = POLICY_NAMES.map((policy) => said(over[policy], 3));
    return [name, `${seconds} s`, ...ratios, isLost ? "loses" : ""];
  });
  return textTable(["step times, engines, groups, KV", "s", ...POLICY_NAMES, ""], cells);
}

const FLAGS = {
  times: "",
  engines: "2,1",
  groups: "4,8,16,64",
  kv: "short,ample",
  pool: "yes,no",
  seeds: 20,
  of: DEFAULT,
} as const;
type Matrix = Readonly<Record<"times" | "engines" | "groups" | "kv" | "pool", string>>;

export function cellsOf({ times, engines, groups, kv, pool }: Matrix): Cell[] {
  const kinds = someOf("kv", kv, ["short", "ample"]);
  const cells: Cell[] = [];
  for (const [table, samples] of Object.entries(TABLES)) {
    if (!table.includes(times)) continue;
    for (const engineCount of engines.split(",")) {
      for (const groupCount of groups.split(",")) {
        for (const hasPool of pool.split(",").map((text) => text === "yes")) {
          for (const kind of kinds) {
            const name = `${table}; ${engineCount}, ${groupCount}, ${kind}${hasPool ? "" : ", no pool"}`;
            const counts = { engines: Number(engineCount), groups: Number(groupCount) };
            cells.push({ name, samples, ...counts, kvTokens: KV[kind], hasPool });
          }
        }
      }
    }
  }
  return cells;
}

async function main(): Promise<void> {
  const { seeds, json, ...flags } = flagsOf(import.meta.path, FLAGS);
  const of = oneOf("of", flags.of, POLICY_NAMES);
  const rows: Row[] = [];
  for (const cell of cellsOf(flags)) rows.push(await rowOf(cell, seeds, of));
  console.log(tableOf(rows));
  writeReport(json, { rows });
}

if (import.meta.main) await main();
