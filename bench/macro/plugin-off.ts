// What the plugin costs a vLLM while there is no sidecar: one server without it and one with it, on the same model and
// flags, asked in turn for the same responses. Three loads: requests that name no group (the plugin has nothing to do),
// requests of groups that share nothing (it drafts from each response's own text), and groups of eight (it drafts from
// siblings on the same server).
//
//   bun bench/macro/plugin-off.ts [--rounds 12] [--requests 32] [--tokens 96] [--vllm PATH] [--json FILE]

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { findVllm } from "../../src/supervise/find-vllm.ts";
import { ensurePlugin } from "../../src/supervise/install-plugin.ts";
import { launchOf } from "../../src/supervise/launch.ts";
import { ManagedServer } from "../../src/supervise/managed-server.ts";
import { freePorts } from "../../src/supervise/ports.ts";

const ROOT = join(import.meta.dir, "..", "..");
const HOST = "127.0.0.1";
const START_MS_MAX = 600_000;
const GRACE_MS = 10_000;
const GROUP_SIZE = 8;
const LOADS = ["no_group", "alone", "grouped"] as const;
type Load = (typeof LOADS)[number];

interface Row {
  readonly load: Load;
  /** Tokens a second, medians over the rounds. */
  readonly without: number;
  readonly with: number;
  /** Median of the rounds' ratios with / without, and the interval that holds it in 95 % of resamplings. */
  readonly ratio: number;
  readonly ratio_low: number;
  readonly ratio_high: number;
}

interface Shape {
  readonly rounds: number;
  readonly requests: number;
  readonly tokens: number;
}

/** Sends the load to a server; tokens a second. */
async function run(url: string, load: Load, shape: Shape, round: number): Promise<number> {
  const { requests, tokens } = shape;
  const startMs = performance.now();
  const counts = await Promise.all(
    Array.from({ length: requests }, async (_, i) => {
      const group = load === "grouped" ? Math.floor(i / GROUP_SIZE) : i;
      const extra = {
        foretoken_group: `${load}-${round}-${group}`,
        foretoken_sample: load === "grouped" ? i % GROUP_SIZE : 0,
        foretoken_offset: 0,
        foretoken_draft: 1,
        foretoken_run: "bench",
        foretoken_epoch: 0,
      };
      const answer = await fetch(`${url}/inference/v1/generate`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({
          token_ids: Array.from(
            { length: 24 },
            (_unused, at) => 10 + ((group * 31 + at * 7) % 900),
          ),
          sampling_params: {
            max_tokens: tokens,
            temperature: 1,
            seed: round * 1000 + i,
            ignore_eos: true,
            ...(load === "no_group" ? {} : { extra_args: extra }),
          },
        }),
      });
      const body = (await answer.json()) as { choices?: { token_ids: number[] }[] };
      if (body.choices === undefined) throw new Error(`${answer.status}: ${JSON.stringify(body)}`);
      return body.choices[0]?.token_ids.length ?? 0;
    }),
  );
  const total = counts.reduce((sum, count) => sum + count, 0);
  return (total * 1000) / (performance.now() - startMs);
}

export async function measure(urls: readonly [string, string], shape: Shape): Promise<Row[]> {
  const rows: Row[] = [];
  for (const load of LOADS) {
    const speeds: [number, number][] = [];
    // The first round of each warms up.
    for (let round = 0; round <= shape.rounds; round += 1) {
      const pair: [number, number] = [0, 0];
      // Whoever goes first has the quieter machine or not: they take turns.
      for (const which of round % 2 === 0 ? ([0, 1] as const) : ([1, 0] as const)) {
        pair[which] = await run(urls[which], load, shape, round);
      }
      if (round > 0) speeds.push(pair);
    }
    const ratios = speeds.map(([without, own]) => own / without);
    const resampled = Array.from({ length: 2000 }, (_, i) =>
      median(ratios.map((_unused, j) => ratios[hash(i, j) % ratios.length] ?? 1)),
    ).sort((a, b) => a - b);
    rows.push({
      load,
      without: median(speeds.map(([without]) => without)),
      with: median(speeds.map(([, own]) => own)),
      ratio: median(ratios),
      ratio_low: resampled[50] ?? 0,
      ratio_high: resampled[1949] ?? 0,
    });
  }
  return rows;
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? 0;
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? 0) + upper) / 2;
}

/** For resampling alike in every run (MurmurHash3's finalizer). */
function hash(a: number, b: number): number {
  let h = Math.imul(a + 1, 0x9e3779b1) ^ Math.imul(b + 1, 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "12" },
      requests: { type: "string", default: "32" },
      tokens: { type: "string", default: "96" },
      vllm: { type: "string" },
      json: { type: "string" },
    },
  });
  const shape = {
    rounds: Number(values.rounds),
    requests: Number(values.requests),
    tokens: Number(values.tokens),
  };
  const found = findVllm(values.vllm ?? process.env.FORETOKEN_VLLM ?? null, ROOT);
  await ensurePlugin({ python: found.python, root: ROOT });
  const folder = mkdtempSync(join(tmpdir(), "foretoken-bench-"));
  const ports = freePorts(3, HOST);
  // Nobody listens there: the sidecar is off.
  const draftUrl = `ws://${HOST}:${ports[2]}/v1/draft`;
  const servers = [null, { draftUrl, token: null, statsFile: join(folder, "stats.json") }].map(
    (plugin, index) => {
      const port = ports[index] ?? 0;
      const launch = launchOf({
        command: found.command,
        build: found.build,
        model: join(ROOT, "model", "hf"),
        host: HOST,
        port,
        index: 0,
        contextTokens: null,
        servedName: null,
        apiKey: null,
        plugin,
        extraArgs: [],
      });
      const env = { ...launch.envDefaults, ...process.env, ...launch.env };
      const logPath = join(folder, `${index}.log`);
      const url = `http://${HOST}:${port}`;
      const spec = { name: `${index}`, url, command: launch.command, env, logPath };
      return new ManagedServer({ ...spec, startMsMax: START_MS_MAX, graceMs: GRACE_MS }, () => {});
    },
  );
  try {
    await Promise.all(servers.map((server) => server.start()));
    const [plain, own] = servers.map(({ spec }) => spec.url);
    const rows = await measure([plain ?? "", own ?? ""], shape);
    report(rows, shape, found.build.version, values.json ?? null);
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
    rmSync(folder, { recursive: true, force: true });
  }
}

function report(rows: readonly Row[], shape: Shape, version: string, json: string | null): void {
  const head = ["load", "without", "with", "with / without", "95 %"];
  const table = new Table({ head, style: { head: [], border: [] } });
  for (const row of rows) {
    const speeds = [row.without, row.with].map((speed) => `${Math.round(speed)} tok/s`);
    const interval = `${row.ratio_low.toFixed(3)} - ${row.ratio_high.toFixed(3)}`;
    table.push([row.load, ...speeds, row.ratio.toFixed(3), interval]);
  }
  console.log(table.toString());
  const conditions = {
    vllm: version,
    ...shape,
    cpu: cpus()[0]?.model,
    cores: cpus().length,
    load: loadavg()[0],
  };
  console.log(JSON.stringify(conditions));
  if (json !== null) writeFileSync(json, `${JSON.stringify({ conditions, rows }, null, 2)}\n`);
}

if (import.meta.main) await main();
