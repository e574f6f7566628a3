// What a move costs: from handing a request to the other of two real vLLM servers to its first token there, with its KV
// moved by vLLM's ExampleConnector and with its text computed again. Recomputing is measured on servers without the
// connector too, for the connector makes every prompt dearer: it stores each one. The servers are otherwise idle.
//
//   FORETOKEN_VLLM=... bun bench/macro/vllm-kv-move.ts [--lengths 320,576,1088,1600,1984] [--rounds 5] [--json FILE]

import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { weightEpoch } from "../../src/base/ids.ts";
import type { MoveRule } from "../../src/worker/vllm/kv-share.ts";
import { KvPair, KvServers, someText } from "../../test/vllm/kv-pair.ts";
import { conditions } from "../harness.ts";

/** Tokens that the source makes before the move: a block, so that something is left to be published. */
const MADE_TOKENS = 128;
const START_MS_MAX = 300_000;
/** Moves under the rule of the product. */
const MEASURED_MOVES = 6;

interface Row {
  /** Prompt + output at the move. */
  readonly tokens: number;
  /** Medians, ms. */
  readonly recompute_plain_ms: number;
  readonly recompute_ms: number;
  readonly kv_ms: number;
  /** Part of `kv_ms`. */
  readonly publish_ms: number;
  readonly kv_per_recompute_plain: number;
  readonly kv_per_recompute: number;
  /** Of MEASURED_MOVES under the rule `measured`: by KV (trials among them), and computed again. */
  measured: { readonly kv: number; readonly recomputed: number };
}

interface Move {
  readonly ms: number;
  readonly publishMs: number;
}

let texts = 0;

async function move(pair: KvPair, tokens: number): Promise<Move> {
  texts += 1;
  const piece = { id: texts, prompt: someText(texts, tokens - MADE_TOKENS), temperature: 0 };
  const { tokens: output } = await pair.chunk(0, { ...piece, output: [], tokens: MADE_TOKENS });
  const before = pair.workers[0]?.stats().kvMoves?.publishMs ?? 0;
  const { firstMs } = await pair.chunk(1, { ...piece, output, tokens: 4 });
  const publishMs = (pair.workers[0]?.stats().kvMoves?.publishMs ?? 0) - before;
  pair.release(texts);
  return { ms: firstMs, publishMs };
}

async function opened(servers: KvServers, rule: MoveRule): Promise<KvPair> {
  return await KvPair.open(servers, { rule, epoch: weightEpoch(0), salt: `bench-${rule}` });
}

/** Closes what it has opened, whatever happens. */
async function withServers<T>(connector: boolean, use: (servers: KvServers) => Promise<T>) {
  const servers = await KvServers.start({ connector, startMsMax: START_MS_MAX });
  try {
    return await use(servers);
  } finally {
    await servers.stop();
  }
}

async function plainTimes(
  lengths: readonly number[],
  rounds: number,
): Promise<Map<number, number>> {
  return await withServers(false, async (servers) => {
    const pair = await opened(servers, "never");
    const times = new Map<number, number>();
    for (const tokens of lengths) {
      const all: number[] = [];
      for (let round = 0; round <= rounds; round += 1) all.push((await move(pair, tokens)).ms);
      // The first is the warm-up.
      times.set(tokens, median(all.slice(1)));
    }
    await pair.close();
    return times;
  });
}

async function measureAll(lengths: readonly number[], rounds: number): Promise<Row[]> {
  const plain = await plainTimes(lengths, rounds);
  return await withServers(true, async (servers) => {
    const rows: Row[] = [];
    const [always, never] = [await opened(servers, "always"), await opened(servers, "never")];
    for (const tokens of lengths) {
      const [kv, again]: [Move[], Move[]] = [[], []];
      for (let round = 0; round <= rounds; round += 1) {
        kv.push(await move(always, tokens));
        again.push(await move(never, tokens));
      }
      rows.push(rowOf(tokens, { kv, again, plainMs: plain.get(tokens) ?? Number.NaN }));
      console.error(`${tokens} tokens: done`);
    }
    await Promise.all([always.close(), never.close()]);
    for (const row of rows) row.measured = await chosen(servers, row.tokens);
    return rows;
  });
}

/** What the product would do, from knowing nothing on. */
async function chosen(servers: KvServers, tokens: number): Promise<Row["measured"]> {
  const pair = await opened(servers, "measured");
  for (let i = 0; i < MEASURED_MOVES; i += 1) await move(pair, tokens);
  const { moves, recomputedMoves } = pair.moves(1);
  await pair.close();
  return { kv: moves, recomputed: recomputedMoves };
}

function rowOf(
  tokens: number,
  { kv, again, plainMs }: { kv: Move[]; again: Move[]; plainMs: number },
): Row {
  // The first ones are the warm-up.
  const kvMs = median(kv.slice(1).map(({ ms }) => ms));
  const recomputeMs = median(again.slice(1).map(({ ms }) => ms));
  return {
    tokens,
    recompute_plain_ms: plainMs,
    recompute_ms: recomputeMs,
    kv_ms: kvMs,
    publish_ms: median(kv.slice(1).map(({ publishMs }) => publishMs)),
    kv_per_recompute_plain: kvMs / plainMs,
    kv_per_recompute: kvMs / recomputeMs,
    measured: { kv: 0, recomputed: 0 },
  };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const [low = Number.NaN, high = Number.NaN] = [sorted[middle - 1] ?? sorted[0], sorted[middle]];
  return sorted.length % 2 === 1 ? high : (low + high) / 2;
}

function tableOf(rows: readonly Row[]): string {
  const head = [
    "tokens",
    "recompute, no connector",
    "recompute",
    "by KV",
    "of it publishing",
    "KV / recompute",
    "chosen",
  ];
  const table = new Table({ head, style: { head: [], border: [] } });
  for (const row of rows) {
    table.push([
      String(row.tokens),
      `${row.recompute_plain_ms.toFixed(0)} ms`,
      `${row.recompute_ms.toFixed(0)} ms`,
      `${row.kv_ms.toFixed(0)} ms`,
      `${row.publish_ms.toFixed(0)} ms`,
      `${row.kv_per_recompute_plain.toFixed(2)}; ${row.kv_per_recompute.toFixed(2)}`,
      `${row.measured.kv} by KV, ${row.measured.recomputed} recomputed`,
    ]);
  }
  return table.toString();
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      lengths: { type: "string", default: "320,576,1088,1600,1984" },
      rounds: { type: "string", default: "5" },
      json: { type: "string" },
    },
  });
  const rows = await measureAll(values.lengths.split(",").map(Number), Number(values.rounds));
  console.log(tableOf(rows));
  if (values.json === undefined) return;
  const command = `bun bench/macro/vllm-kv-move.ts ${process.argv.slice(2).join(" ")}`;
  writeFileSync(
    values.json,
    `${JSON.stringify({ command, conditions: conditions(), rows }, null, 2)}\n`,
  );
}

if (import.meta.main) await main();
