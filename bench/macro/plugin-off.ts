// What the plugin costs a vLLM while there is no sidecar: one server without it and one with it, on the same model and
// flags, asked for the same responses in the order 0 1 1 0, so that a machine that grows slower or faster weighs on both
// alike. Three loads, of the bundled model's own prompts: requests that name no group (the plugin has nothing to do),
// requests of a group each (it drafts from each response's own text), and groups of eight (it drafts from siblings on the
// same server). As many requests as --in-flight run at any time: in a batch that only shrinks, the slowest response
// would be measured.
//
// Told are ratios, above 1 where the server is better than the one without: of tokens a second, and of the CPU time of
// the server's processes, which is less noisy. With --null a third server has a proposer that never drafts:
// what it loses is vLLM's own price of speculation, and no plugin can be without it.
//
//   bun bench/macro/plugin-off.ts [--rounds 6] [--requests 96] [--in-flight 32] [--tokens 256] [--null] [--vllm PATH]
//                                 [--json FILE]

import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { findVllm } from "../../src/supervise/find-vllm.ts";
import { ensurePlugin } from "../../src/supervise/install-plugin.ts";
import { DRAFT_TOKENS, launchOf } from "../../src/supervise/launch.ts";
import { ManagedServer } from "../../src/supervise/managed-server.ts";
import { freePorts } from "../../src/supervise/ports.ts";

const ROOT = join(import.meta.dir, "..", "..");
const MODEL = join(ROOT, "model", "hf");
const PROMPTS: readonly string[] = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8")
  .split("\n")
  .filter((line) => line !== "")
  .map((line) => JSON.parse(line).prompt);
const HOST = "127.0.0.1";
const START_MS_MAX = 600_000;
const GRACE_MS = 10_000;
const GROUP_SIZE = 8;
const LOADS = ["no_group", "alone", "grouped"] as const;
type Load = (typeof LOADS)[number];

/** Ticks a second of /proc/PID/stat: USER_HZ, 100 on every Linux that runs vLLM. */
const TICKS = 100;
const NULL_PROPOSER = `class NullProposer:
    def __init__(self, vllm_config):
        pass

    def load_model(self, *arguments, **options):
        pass

    def dummy_run(self, *arguments, **options):
        pass

    def propose(self, sampled_token_ids, *arguments, **options):
        return [[] for _ in sampled_token_ids]
`;

/** The median of the rounds' ratios, and the interval that holds it in 95 % of resamplings. */
interface Ratio {
  readonly median: number;
  readonly low: number;
  readonly high: number;
}

interface Row {
  readonly load: Load;
  readonly server: string;
  /** Tokens a second, medians over the rounds: of the server without the plugin, and of this one. */
  readonly without: number;
  readonly with: number;
  readonly speed: Ratio;
  /** CPU time a token, of the server without the plugin by this one's. null: there is no /proc. */
  readonly cpu: Ratio | null;
}

interface Target {
  readonly name: string;
  readonly url: string;
  readonly model: string;
  /** Of its process group. */
  readonly pid: number | null;
}

interface Cost {
  ms: number;
  cpuS: number;
  tokens: number;
}

interface Shape {
  readonly rounds: number;
  /** Of a load, and how many of them at a time. */
  readonly requests: number;
  readonly inFlight: number;
  /** Of a response, at most. */
  readonly tokens: number;
}

/** Sends the load to a server, always so many requests at a time while there are any; its tokens. */
async function run(target: Target, load: Load, shape: Shape, round: number): Promise<number> {
  let next = 0;
  let tokens = 0;
  const ask = async (): Promise<void> => {
    while (next < shape.requests) {
      const request = next;
      next += 1;
      // Read after the wait: others have added to it meanwhile.
      const made = await respond(target, load, shape, round * shape.requests + request);
      tokens += made;
    }
  };
  await Promise.all(Array.from({ length: shape.inFlight }, ask));
  return tokens;
}

/** `at`: of all requests of the load. */
async function respond(
  { url, model }: Target,
  load: Load,
  shape: Shape,
  at: number,
): Promise<number> {
  const group = load === "grouped" ? Math.floor(at / GROUP_SIZE) : at;
  const extra = {
    foretoken_group: `${load}-${group}`,
    foretoken_sample: load === "grouped" ? at % GROUP_SIZE : 0,
    foretoken_offset: 0,
    foretoken_draft: 1,
    foretoken_run: "bench",
    foretoken_epoch: 0,
  };
  const answer = await fetch(`${url}/v1/completions`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model,
      prompt: PROMPTS[group % PROMPTS.length],
      max_tokens: shape.tokens,
      temperature: 1,
      seed: at,
      logprobs: 0,
      ...(load === "no_group" ? {} : { vllm_xargs: extra }),
    }),
  });
  const body = (await answer.json()) as { usage?: { completion_tokens: number } };
  if (body.usage === undefined) throw new Error(`${answer.status}: ${JSON.stringify(body)}`);
  return body.usage.completion_tokens;
}

export async function measure(targets: readonly Target[], shape: Shape): Promise<Row[]> {
  const order = [...targets.keys(), ...[...targets.keys()].reverse()];
  const rows: Row[] = [];
  for (const load of LOADS) {
    const rounds: Cost[][] = [];
    // The first round of each warms up.
    for (let round = 0; round <= shape.rounds; round += 1) {
      const costs = targets.map((): Cost => ({ ms: 0, cpuS: 0, tokens: 0 }));
      for (const [turn, which] of order.entries()) {
        const [target, cost] = [targets[which], costs[which]];
        if (target === undefined || cost === undefined) continue;
        const [startMs, startS] = [performance.now(), cpuSOf(target.pid)];
        // Each of the two turns has groups of its own, the same on all servers.
        const salt = 2 * round + (turn < targets.length ? 0 : 1);
        cost.tokens += await run(target, load, shape, salt);
        cost.ms += performance.now() - startMs;
        cost.cpuS += cpuSOf(target.pid) - startS;
      }
      if (round > 0) rounds.push(costs);
    }
    for (const which of targets.keys())
      if (which > 0) rows.push(rowOf(load, targets, which, rounds));
  }
  return rows;
}

function rowOf(
  load: Load,
  targets: readonly Target[],
  which: number,
  rounds: readonly Cost[][],
): Row {
  const zero: Cost = { ms: Number.NaN, cpuS: Number.NaN, tokens: 0 };
  const pairs = rounds.map((costs) => [costs[0] ?? zero, costs[which] ?? zero] as const);
  const speed = (cost: Cost) => (cost.tokens * 1000) / cost.ms;
  const cpu = pairs.map(([plain, own]) => plain.cpuS / plain.tokens / (own.cpuS / own.tokens));
  return {
    load,
    server: targets[which]?.name ?? "",
    without: median(pairs.map(([plain]) => speed(plain))),
    with: median(pairs.map(([, own]) => speed(own))),
    speed: ratioOf(pairs.map(([plain, own]) => speed(own) / speed(plain))),
    cpu: cpu.every(Number.isFinite) ? ratioOf(cpu) : null,
  };
}

function ratioOf(ratios: readonly number[]): Ratio {
  const resampled = Array.from({ length: 2000 }, (_, i) =>
    median(ratios.map((_unused, j) => ratios[hash(i, j) % ratios.length] ?? 1)),
  ).sort((a, b) => a - b);
  return { median: median(ratios), low: resampled[50] ?? 0, high: resampled[1949] ?? 0 };
}

/** Seconds of CPU that the processes of a group have used; NaN: nothing is known of them. */
function cpuSOf(group: number | null): number {
  let ticks = Number.NaN;
  for (const name of group === null ? [] : listed("/proc")) {
    const fields = /^\d+$/.test(name) ? statOf(Number(name)) : null;
    if (fields?.[2] !== String(group)) continue;
    ticks = (Number.isNaN(ticks) ? 0 : ticks) + Number(fields[11]) + Number(fields[12]);
  }
  return ticks / TICKS;
}

/** The fields of /proc/PID/stat behind the name, which may hold blanks: state, parent, group and so on (proc(5)). */
function statOf(pid: number): string[] | null {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    return text.slice(text.lastIndexOf(")") + 2).split(" ");
  } catch {
    return null;
  }
}

function listed(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
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
      rounds: { type: "string", default: "6" },
      requests: { type: "string", default: "96" },
      "in-flight": { type: "string", default: "32" },
      tokens: { type: "string", default: "256" },
      null: { type: "boolean", default: false },
      vllm: { type: "string" },
      json: { type: "string" },
    },
  });
  const shape = {
    rounds: Number(values.rounds),
    requests: Number(values.requests),
    inFlight: Number(values["in-flight"]),
    tokens: Number(values.tokens),
  };
  const found = findVllm(values.vllm ?? process.env.FORETOKEN_VLLM ?? null, ROOT);
  await ensurePlugin({ python: found.python, root: ROOT });
  const folder = mkdtempSync(join(tmpdir(), "foretoken-bench-"));
  const names = ["without", "plugin", ...(values.null ? ["null"] : [])];
  const servers = serversOf(names, found, folder);
  try {
    await Promise.all(servers.map((server) => server.start()));
    const targets = servers.map(({ spec, pid }) => ({
      name: spec.name,
      url: spec.url,
      model: MODEL,
      pid,
    }));
    const rows = await measure(targets, shape);
    report(rows, shape, found.build.version, values.json ?? null);
  } finally {
    await Promise.all(servers.map((server) => server.stop()));
    rmSync(folder, { recursive: true, force: true });
  }
}

function serversOf(
  names: readonly string[],
  found: ReturnType<typeof findVllm>,
  folder: string,
): ManagedServer[] {
  const ports = freePorts(names.length + 1, HOST);
  // Nothing listens there: the sidecar is off.
  const draftUrl = `ws://${HOST}:${ports[names.length]}/v1/draft`;
  writeFileSync(join(folder, "null_proposer.py"), NULL_PROPOSER);
  const speculation = {
    method: "custom_class",
    model: "null_proposer.NullProposer",
    num_speculative_tokens: DRAFT_TOKENS,
  };
  const nullArgs = ["--speculative-config", JSON.stringify(speculation)];
  return names.map((name, index) => {
    const port = ports[index] ?? 0;
    const statsFile = join(folder, "stats.json");
    const launch = launchOf({
      command: found.command,
      build: found.build,
      model: MODEL,
      host: HOST,
      port,
      gpus: found.build.isCpu ? null : "0",
      contextTokens: null,
      servedName: null,
      apiKey: null,
      plugin: name === "plugin" ? { draftUrl, token: null, statsFile } : null,
      extraArgs: name === "null" ? nullArgs : [],
    });
    const isNull = name === "null";
    const own = isNull ? { PYTHONPATH: folder, VLLM_USE_V2_MODEL_RUNNER: "0" } : {};
    const env = { ...launch.envDefaults, ...process.env, ...launch.env, ...own };
    const logPath = join(folder, `${name}.log`);
    const spec = { name, url: `http://${HOST}:${port}`, command: launch.command, env, logPath };
    return new ManagedServer({ ...spec, startMsMax: START_MS_MAX, graceMs: GRACE_MS }, () => {});
  });
}

function report(rows: readonly Row[], shape: Shape, version: string, json: string | null): void {
  const head = ["load", "server", "without", "with", "speed", "95 %", "cpu", "95 %"];
  const table = new Table({ head, style: { head: [], border: [] } });
  for (const row of rows) {
    const speeds = [row.without, row.with].map((speed) => `${Math.round(speed)} tok/s`);
    table.push([row.load, row.server, ...speeds, ...cellsOf(row.speed), ...cellsOf(row.cpu)]);
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

function cellsOf(ratio: Ratio | null): string[] {
  if (ratio === null) return ["-", "-"];
  return [ratio.median.toFixed(3), `${ratio.low.toFixed(3)} - ${ratio.high.toFixed(3)}`];
}

if (import.meta.main) await main();
