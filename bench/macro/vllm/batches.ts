// What drafts bring or cost by the size of the batch: one vLLM server without the plugin and one with it, in the order
// 0 1 1 0 in each round, so that a machine that grows slower or faster weighs on both alike. There is no sidecar.
//
//   npm run bench:vllm -- --batches 1,2,4,8,16,32,64 [--priced] [--loads random,grouped,alone,no_group] [--rounds 3]
//       [--tokens 96] [--null] [--report FILE.json]
//
// A batch is static: all of its requests start together and have the same number of tokens, so it ends with the one
// whose drafts are accepted least. That is the worst case for drafts. Loads: `random` (prompts of random tokens, a group
// each), `grouped` (the bundled prompts, eight siblings each), `alone` (the bundled prompts, a group each), `no_group`
// (the plugin has nothing to do). Ratios are above 1 where drafts win: of wall time, and of the CPU time of the server's
// processes, which other load on the machine distorts less. `--null` adds a server whose proposer never drafts.

import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { MODEL } from "../../../test/vllm/fleet.ts";
import { conditions, SEED } from "../../harness.ts";
import { readLog, type Step } from "./engine-log.ts";
import { cpuSecondsOf } from "./machine.ts";
import { pricedModel } from "./settings.ts";
import { type SingleName, startSingles } from "./singles.ts";
import { type Ratio, ratioOf, sumOf } from "./statistics.ts";
import { post, promptsOf } from "./systems.ts";

const LOADS = ["random", "grouped", "alone", "no_group"] as const;
type Load = (typeof LOADS)[number];

const GROUP_SIZE = 8;
/** Length of a random prompt of ids that the bundled models have. */
const PROMPT_TOKENS = 8;
const RANDOM_TOKENS_MIN = 300;
const RANDOM_TOKENS_MAX = 1300;
/** Requests of a turn, at least: small batches run several times. */
const REQUESTS_MIN = 4;

export interface Shape {
  readonly batches: readonly number[];
  readonly loads: readonly Load[];
  readonly rounds: number;
  /** Length of each response. */
  readonly tokens: number;
}

export interface Single {
  readonly name: string;
  readonly url: string;
  /** Process group of the server. */
  readonly pid: number;
}

/** One turn: all batches of a size, on one server. */
export interface Turn {
  readonly wallS: number;
  readonly cpuS: number;
  readonly steps: readonly Step[];
}

interface Row {
  readonly load: Load;
  readonly batch: number;
  readonly server: string;
  readonly wall: Ratio;
  readonly cpu: Ratio;
  /** Tokens per step of the server. */
  readonly tokens_per_step: number;
  readonly rows_per_step: number;
  readonly drafted: number;
  readonly accepted: number;
  readonly drafted_steps: number;
}

class Driver {
  readonly #model: string;
  readonly #prompts: readonly (readonly number[])[];
  readonly #tokens: number;

  constructor(model: string, prompts: readonly (readonly number[])[], tokens: number) {
    this.#model = model;
    this.#prompts = prompts;
    this.#tokens = tokens;
  }

  /** `salt` names the groups and seeds: the same on all servers. */
  async turn(single: Single, load: Load, batch: number, salt: number): Promise<Turn> {
    const waves = Math.ceil(REQUESTS_MIN / batch);
    await readLog([single.url]);
    const [startMs, startS] = [performance.now(), cpuSecondsOf(new Set([single.pid]))];
    for (let wave = 0; wave < waves; wave += 1) {
      const first = salt * 1000 + wave * batch;
      await Promise.all(
        Array.from({ length: batch }, (_, i) => this.#request(single, load, first + i)),
      );
    }
    const wallS = (performance.now() - startMs) / 1000;
    const cpuS = cpuSecondsOf(new Set([single.pid])) - startS;
    const log = await readLog([single.url]);
    return { wallS, cpuS, steps: log.steps.flat() };
  }

  async #request({ url }: Single, load: Load, at: number): Promise<void> {
    const group = load === "grouped" ? Math.floor(at / GROUP_SIZE) : at;
    const extra = {
      foretoken_group: `${load}-${group}`,
      foretoken_sample: load === "grouped" ? at % GROUP_SIZE : 0,
      foretoken_offset: 0,
      foretoken_draft: 1,
      foretoken_run: "bench",
      foretoken_epoch: 0,
    };
    const prompt =
      load === "random" ? randomPrompt(at) : this.#prompts[group % this.#prompts.length];
    await post(`${url}/v1/completions`, {
      model: this.#model,
      prompt,
      max_tokens: this.#tokens,
      ignore_eos: true,
      temperature: 1,
      seed: SEED + at,
      logprobs: 0,
      ...(load === "no_group" ? {} : { vllm_xargs: extra }),
    });
  }
}

function randomPrompt(at: number): number[] {
  const span = RANDOM_TOKENS_MAX - RANDOM_TOKENS_MIN;
  return Array.from({ length: PROMPT_TOKENS }, (_, i) => RANDOM_TOKENS_MIN + (hash(at, i) % span));
}

/** MurmurHash3's finalizer over both. */
function hash(a: number, b: number): number {
  let h = Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 1, 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

async function measure(
  singles: readonly Single[],
  driver: Driver,
  shape: Shape,
  onRows: (rows: readonly Row[], steps: ReadonlyMap<string, readonly Step[]>) => void,
): Promise<Row[]> {
  const order = [...singles.keys(), ...[...singles.keys()].reverse()];
  const rows: Row[] = [];
  const steps = new Map<string, Step[]>(singles.map(({ name }) => [name, []]));
  let salt = 0;
  for (const load of shape.loads) {
    for (const batch of shape.batches) {
      const rounds: Turn[][][] = [];
      // The first round warms up: the plugin learns what steps of this size take.
      for (let round = 0; round <= shape.rounds; round += 1) {
        const turns: Turn[][] = singles.map(() => []);
        for (const [position, which] of order.entries()) {
          const single = singles[which] as Single;
          const turn = await driver.turn(
            single,
            load,
            batch,
            salt + Number(position >= singles.length),
          );
          turns[which]?.push(turn);
          if (round > 0) steps.get(single.name)?.push(...turn.steps);
        }
        salt += 2;
        if (round > 0) rounds.push(turns);
      }
      const found = singles
        .slice(1)
        .map(({ name }, i) => ({ load, batch, server: name, ...rowOf(rounds, i + 1) }));
      for (const row of found) console.error(lineOf(row).join("  "));
      rows.push(...found);
      onRows(rows, steps);
    }
  }
  return rows;
}

export function rowOf(
  rounds: readonly Turn[][][],
  which: number,
): Omit<Row, "load" | "batch" | "server"> {
  const of = (server: number, value: (turn: Turn) => number): number[] =>
    rounds.map((turns) => sumOf(turns[server] ?? [], value));
  const wall = (turn: Turn): number => turn.wallS;
  const cpu = (turn: Turn): number => turn.cpuS;
  const steps = rounds.flatMap((turns) => (turns[which] ?? []).flatMap((turn) => turn.steps));
  const decoding = steps.filter(({ prefillRows }) => prefillRows === 0);
  const requests = sumOf(decoding, (step) => step.requests);
  const drafted = sumOf(steps, ({ draftRows }) => draftRows);
  return {
    wall: ratioOf(of(0, wall), of(which, wall)),
    cpu: ratioOf(of(0, cpu), of(which, cpu)),
    tokens_per_step: sumOf(decoding, ({ tokensMade }) => tokensMade) / requests,
    rows_per_step: sumOf(decoding, (step) => step.rows) / decoding.length,
    drafted,
    accepted: sumOf(decoding, (step) => step.tokensMade - step.requests),
    drafted_steps: decoding.filter(({ draftRows }) => draftRows > 0).length / decoding.length,
  };
}

const HEAD = [
  ...["load", "batch", "server", "wall", "95 %", "CPU", "95 %"],
  ...["tokens/step", "rows", "drafted", "accepted", "steps with drafts"],
];

function lineOf(row: Row): string[] {
  const cells = ({ mean, low, high }: Ratio): string[] => [
    mean.toFixed(3),
    low === null || high === null ? "-" : `${low.toFixed(3)} - ${high.toFixed(3)}`,
  ];
  return [
    ...[row.load, String(row.batch), row.server, ...cells(row.wall), ...cells(row.cpu)],
    ...[row.tokens_per_step.toFixed(2), row.rows_per_step.toFixed(1)],
    ...[String(row.drafted), String(row.accepted), `${(100 * row.drafted_steps).toFixed(0)} %`],
  ];
}

/** @throws Error naming the option, its value and what it may be. */
export function readShape(values: Record<string, string | boolean | undefined>): Shape {
  const count = (name: string, text: string): number => {
    const value = Number(text);
    if (Number.isInteger(value) && value >= 1 && value <= 1024) return value;
    throw new Error(`--${name} is ${text}; it is a whole number from 1 to 1024`);
  };
  const listed = String(values.loads).split(",");
  const unknown = listed.find((name) => !LOADS.some((load) => load === name));
  if (unknown !== undefined) {
    throw new Error(`--loads names ${unknown}; there are ${LOADS.join(", ")}`);
  }
  return {
    batches: String(values.batches)
      .split(",")
      .map((text) => count("batches", text)),
    loads: LOADS.filter((load) => listed.includes(load)),
    rounds: count("rounds", String(values.rounds)),
    tokens: count("tokens", String(values.tokens)),
  };
}

export async function compareBatches(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      batches: { type: "string" },
      priced: { type: "boolean", default: false },
      loads: { type: "string", default: "random,grouped" },
      rounds: { type: "string", default: "3" },
      tokens: { type: "string", default: "96" },
      null: { type: "boolean", default: false },
      report: { type: "string" },
    },
  });
  const shape = readShape(values);
  const model = values.priced ? pricedModel() : MODEL;
  const names: SingleName[] = values.null ? ["plain", "plugin", "null"] : ["plain", "plugin"];
  const servers = await startSingles(names, { model, slots: Math.max(...shape.batches) });
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => void servers.stop().finally(() => process.exit(130)));
  }
  try {
    const prompts = await promptsOf(servers.singles[0]?.url ?? "", model, GROUP_SIZE * 8);
    const driver = new Driver(model, prompts, shape.tokens);
    const about = { ...conditions(), model: values.priced ? "priced" : "bundled", ...shape };
    // After every batch, so that a run that is broken off leaves those before.
    const save = (rows: readonly Row[], steps: ReadonlyMap<string, readonly Step[]>): void => {
      if (values.report === undefined) return;
      const report = { conditions: about, rows, steps: Object.fromEntries(steps) };
      writeFileSync(values.report, `${JSON.stringify(report)}\n`);
    };
    const rows = await measure(servers.singles, driver, shape, save);
    const table = new Table({ head: HEAD, style: { head: [], border: [] } });
    table.push(...rows.map(lineOf));
    console.log(table.toString());
    console.log(JSON.stringify(about));
  } finally {
    await servers.stop();
  }
}
