// Ideas of related systems (docs/SIMULATOR.md) that a trainer can use by its requests, on two embedded engines: three
// iterations of 16 prompts, 8 responses to each, and a weight update after each. Rows alternate with their bases, which have
// the same prompts and random numbers, on one server without history. One more rollout ends what was carried on.
//
//   bun bench/macro/related.ts [--rows partial-seer,...] [--rounds 3] [--tokens 1024] [--deterministic] [--json FILE]
//
// speed: tokens of returned responses a second over the base's; of rows that carry, from the second iteration on. bias: mean
// length of returned responses over that of all to the prompts that were issued. reported: the same by `length_bias`. old:
// part of the tokens that is of earlier weights. wrong: responses that are lost, there twice or torn, and with
// `--deterministic` (slow kernels: for this check, not for times) those that differ from the base's.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { median } from "../../src/cli/rounds.ts";
import { assert } from "../../src/core/base/assert.ts";
import { BUNDLED_MODEL } from "../../src/host/installation.ts";
import {
  keyOf,
  type ResponseLine as Line,
  rolledOut,
} from "../../test/faults/chaos/response-line.ts";
import { ToolProcess } from "../../test/faults/process.ts";
import { figureTable, flagsOf, SEED, someOf, writeReport } from "../harness.ts";
import { meanOf, sumOf } from "../statistics.ts";

const [ITERATIONS, GROUPS, SIZE] = [3, 16, 8];

interface Row {
  readonly base: "verl" | "seer";
  /** Groups that run at first, carried ones included, and responses to each. */
  readonly issued?: number;
  readonly n?: number;
  readonly fields?: object;
  readonly carries?: boolean;
  /** Prompts whose responses of the last epoch were longest come last: a trainer deals them out, no option of the server. */
  readonly byHistory?: boolean;
}

const carrying = (base: Row["base"], staleness: number): Row => {
  const fields = { finish_groups: GROUPS, max_staleness: staleness };
  return { base, issued: 2 * GROUPS, fields, carries: true };
};
const ROWS = {
  verl: { base: "verl" },
  "partial-rollout": carrying("verl", ITERATIONS),
  seer: { base: "seer" },
  "partial-seer": carrying("seer", ITERATIONS),
  "partial-strict": carrying("seer", 0),
  "finish-first": { base: "seer", n: 10, fields: { finish_first: SIZE } },
  "finish-groups": { base: "seer", issued: 20, fields: { finish_groups: GROUPS } },
  "tail-batching": { base: "seer", byHistory: true },
} satisfies Record<string, Row>;
type Name = keyof typeof ROWS;

const defaults = { rows: null, rounds: 3, tokens: 1024, deterministic: false } as const;
const { rows: named, rounds, tokens, deterministic, json } = flagsOf(import.meta.path, defaults);
const FLAGS = ["--llama", "2", "--history-mb", "0"];
const file = join(import.meta.dir, "..", "..", "model", "prompts.jsonl");
/** As many as rows issue at most, and one for the rollout that ends the others. */
const PROMPTS: readonly { id: string }[] = readFileSync(file, "utf8")
  .split("\n", (ITERATIONS + 1) * GROUPS + 1)
  .map((line) => JSON.parse(line));

interface Rolled {
  readonly lines: readonly Line[];
  readonly epoch: number;
  readonly report: { wall_s: number; length_bias: number; carried_groups: number };
}

const tokensOf = (lines: readonly Line[]): number => sumOf(lines, (line) => line.token_ids.length);
const linesOf = (all: readonly Rolled[] = []): Line[] => all.flatMap(({ lines }) => lines);
const speedOf = (all: readonly Rolled[]): number =>
  tokensOf(linesOf(all)) / sumOf(all, ({ report }) => report.wall_s);

/** Lengths of each prompt's responses. */
function lengthsOf(lines: readonly Line[]): (id: string) => number[] {
  const by = Map.groupBy(lines, ({ group }) => group);
  return (id) => (by.get(id) ?? []).map((line) => line.token_ids.length);
}

async function served(base: Row["base"]) {
  const policy = ["--policy", `${base === "verl" ? "group" : base}:grouped`];
  if (deterministic) policy.push("--deterministic");
  return { process: await ToolProcess.serving(...FLAGS, ...policy), epoch: 0 };
}

type Served = Awaited<ReturnType<typeof served>>;

async function chain(server: Served, row: Row, seed: number, prompts: typeof PROMPTS) {
  const { issued = GROUPS, n = SIZE, fields = {}, carries = false } = row;
  const { http } = server.process;
  const sampling_params = { max_tokens: tokens, temperature: 1, seed };
  const rolled: Rolled[] = [];
  const roll = async (groups: typeof PROMPTS, more: object): Promise<void> => {
    const { epoch } = server;
    const from = carries && rolled.length > 0 ? { carry_from: `${epoch - 1}` } : {};
    const body = { id: `${epoch}`, n, groups, sampling_params, ...more, ...from };
    rolled.push({ ...(await rolledOut(http.url, JSON.stringify(body))), epoch });
    const update = { method: "reload_weights", kwargs: { weights_path: BUNDLED_MODEL } };
    const { status } = await http.ask("/collective_rpc", update);
    assert(status === 200, "the weights are updated");
    server.epoch += 1;
  };
  const last = carries ? ITERATIONS : Math.floor((ITERATIONS * GROUPS) / issued);
  let next = 0;
  while (rolled.length < last) {
    const from = next;
    next += issued - (carries ? (rolled.at(-1)?.report.carried_groups ?? 0) : 0);
    await roll(prompts.slice(from, next), fields);
  }
  if (carries) await roll(prompts.slice(-1), { ...fields, finish_groups: null });
  const groups = carries ? next + 1 : last * GROUPS;
  return { issued: prompts.slice(0, next), measured: rolled.slice(0, last), rolled, groups };
}

type Chain = Awaited<ReturnType<typeof chain>>;
type Figures = ReturnType<typeof figures>;

function figures({ carries = false }: Row, own: Chain, base: Chain) {
  const { measured } = own;
  const lines = linesOf(measured);
  const every = linesOf(own.rolled);
  const known = linesOf(base.rolled);
  const lengths = lengthsOf(carries ? every : known);
  const all = meanOf(own.issued.map(({ id }) => meanOf(lengths(id))));
  const oldIn = ({ chunks }: Line, epoch: number): number =>
    sumOf(chunks, ({ tokens, weight_epoch: of }) => (of !== undefined && of < epoch ? tokens : 0));
  const old = sumOf(measured, (one) => sumOf(one.lines, (line) => oldIn(line, one.epoch)));
  const isWhole = ({ token_ids: ids, logprobs, chunks, finish_reason: reason }: Line): boolean =>
    ["stop", "length"].includes(reason) &&
    logprobs.length === ids.length &&
    sumOf(chunks, ({ tokens }) => tokens) === ids.length;
  const texts = new Map(known.map((line) => [keyOf(line), `${line.token_ids}`]));
  const differs = (line: Line): boolean =>
    deterministic && (texts.get(keyOf(line)) ?? `${line.token_ids}`) !== `${line.token_ids}`;
  const there = new Set(every.map(keyOf)).size;
  const wrong = {
    lost: own.groups * SIZE - there,
    twice: every.length - there,
    torn: every.filter((line) => !isWhole(line)).length,
    differ: every.filter(differs).length,
  };
  return {
    speed:
      speedOf(measured.slice(Number(carries))) / speedOf(base.measured.slice(0, measured.length)),
    bias: tokensOf(lines) / lines.length / all - 1,
    reported: meanOf(measured.map(({ report }) => report.length_bias)),
    old: old / tokensOf(lines),
    wrong: sumOf(Object.values(wrong), (count) => count),
    ...wrong,
    tokens_per_s: measured.map((one) => speedOf([one])),
  };
}

const names = Object.keys(ROWS) as Name[];
const asked = someOf("rows", named, names);
/** A warm server to each base, and what it made in the last epoch. */
const bases = new Map<string, { server: Served; last: Chain }>();
for (const base of new Set(asked.map((name) => ROWS[name].base))) {
  const server = await served(base);
  bases.set(base, { server, last: await chain(server, ROWS[base], SEED, PROMPTS) });
}
const rows = names.filter((name) => asked.includes(name) || bases.has(name));
const found = new Map(rows.map((name) => [name, [] as Figures[]]));
for (let round = 1; round <= rounds; round += 1) {
  for (const [base, state] of bases) {
    const lengths = lengthsOf(linesOf(state.last.rolled));
    const byHistory = PROMPTS.slice(0, ITERATIONS * GROUPS).sort(
      (a, b) => Math.max(...lengths(a.id)) - Math.max(...lengths(b.id)),
    );
    for (const name of rows.filter((one) => ROWS[one].base === base)) {
      const row: Row = ROWS[name];
      const prompts = row.byHistory ? byHistory : PROMPTS;
      const own = await chain(state.server, row, SEED + round, prompts);
      if (name === base) state.last = own;
      const one = figures(row, own, state.last);
      found.get(name)?.push(one);
      console.error(`round ${round}, ${name}: ${JSON.stringify(one)}`);
    }
  }
}
for (const { server } of bases.values()) await server.process.kill();

const cell = (key: "speed" | "bias" | "reported" | "old", scale = 100) => {
  return (of: readonly Figures[]): string => {
    const all = of.map((one) => one[key] * scale);
    const shown = [median(all), Math.min(...all), Math.max(...all)];
    const [mid, low, high] = shown.map((one) => one.toFixed(scale === 1 ? 2 : 0));
    return `${mid} (${low} to ${high})`;
  };
};
console.log(
  figureTable(found, [
    ["speed", cell("speed", 1)],
    ["bias, %", cell("bias")],
    ["reported, %", cell("reported")],
    ["old, %", cell("old")],
    ["wrong", (of) => String(sumOf(of, ({ wrong }) => wrong))],
  ]),
);
writeReport(json, Object.fromEntries(found));
