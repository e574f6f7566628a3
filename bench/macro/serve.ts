// What one core of the sidecar carries: tokens a second from workers' batches through the rollout to clients, as SSE, beside
// a plain reverse proxy in Bun in the same run; and what it adds to a token's way. The sidecar is a process of its own; so is
// the proxy. Tokens per CPU second of that process are what counts: clients and workers have cores of their own in life, and
// here they share them.
//
// Latency is taken at a quarter and at half of what the machine carries (the same steps, spread evenly over time),
// and at all of it; the proxy's at the same tokens a second.
//
//   bun bench/macro/serve.ts [--requests 16384] [--seconds 5] [--draft grouped] [--modes sse,proxy] [--json FILE]

import { cpus, loadavg } from "node:os";
import { parseArgs } from "node:util";
import Table from "cli-table3";
import { assert } from "../../src/core/base/assert.ts";
import { DRAFT_MODES, type DraftMode } from "../../src/core/draft/registry.ts";
import { helpFrom, writeReport } from "../harness.ts";
import { type Load, MODES, type Mode, STAMP_MASK } from "./serve-load.ts";
import { type Served, spawnServed } from "./serve-process.ts";

export interface ServeRow {
  readonly mode: Mode;
  readonly requests: number;
  readonly clients: number;
  readonly tokens_per_cpu_s: number;
  /** Ratio to the plain proxy's rate in the same run; NaN: the proxy was not run. */
  over_proxy: number;
  /** Rate on this machine, clients included: the capacity that paced loads are shares of. */
  readonly tokens_per_s: number;
  readonly bytes_per_token: number;
  /** Latencies from a worker's step to the client's frame, including the clients' own wait for a core. */
  readonly latencies: readonly LatencyRow[];
  /** Tokens that clients counted, of those that were sent to them. */
  readonly received_share: number;
}

export interface LatencyRow {
  /** Share of the capacity; null: without pacing. */
  readonly load: number | null;
  readonly tokens_per_s: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
}

export interface ServeShape {
  readonly requests: number;
  readonly seconds: number;
  /** Tokens of a request in a step. */
  readonly stepTokens: number;
  /** grouped: every sibling's tokens go out to the other workers, too. */
  readonly draft: DraftMode;
  /** Time before anything is measured, in which the compiler sees every path. */
  readonly warmUpS: number;
}

const SSE_STREAMS = 256;
/** Shares of the capacity at which latency is taken, besides at all of it. */
const PACED_LOADS = [0.25, 0.5];

/** `capacity`: tokens/s that paced loads are shares of; null: the mode's own. */
export async function measure(
  mode: Mode,
  shape: ServeShape,
  capacity: number | null = null,
): Promise<ServeRow> {
  const served = await spawnServed(mode, shape.draft);
  try {
    const clients = await connect(served, mode, shape.requests);
    const counter = clients.counter;
    const load: Load = { ...shape, mode, tokensPerS: null };
    if (shape.warmUpS > 0) await warmUp(served, clients, { ...load, seconds: shape.warmUpS });
    const full = await served.run(load);
    await clients.settle();
    const { tokens, bytes } = counter;
    const tokensPerS = full.tokensOut / full.seconds;
    const latencies = [latencyRow(counter, { load: null, tokensPerS })];
    for (const share of PACED_LOADS) {
      const tokensPerS = (capacity ?? full.tokensOut / full.seconds) * share;
      const paced = await served.run({ ...load, tokensPerS });
      await clients.settle();
      const reached = paced.tokensOut / paced.seconds;
      latencies.push(latencyRow(counter, { load: share, tokensPerS: reached }));
    }
    clients.close();
    return {
      mode,
      requests: shape.requests,
      clients: clients.count,
      tokens_per_cpu_s: full.tokensOut / (full.cpuUs / 1e6),
      over_proxy: Number.NaN,
      tokens_per_s: tokensPerS,
      bytes_per_token: bytes / full.tokensOut,
      latencies: latencies.toSorted((a, b) => (a.load ?? 1) - (b.load ?? 1)),
      received_share: tokens / full.tokensOut,
    };
  } finally {
    await served.stop();
  }
}

async function warmUp(served: Served, { counter, settle }: Clients, load: Load): Promise<void> {
  await served.run(load);
  await settle();
  counter.tokens = 0;
  counter.bytes = 0;
  counter.latencies.length = 0;
}

/** Latencies of the frames that clients have seen since the last call. */
function latencyRow(
  counter: Counter,
  about: { load: number | null; tokensPerS: number },
): LatencyRow {
  const sorted = counter.latencies.splice(0).sort((a, b) => a - b);
  const at = (share: number) => sorted[Math.floor(sorted.length * share)] ?? Number.NaN;
  return { load: about.load, tokens_per_s: about.tokensPerS, p50_ms: at(0.5), p99_ms: at(0.99) };
}

interface Counter {
  tokens: number;
  bytes: number;
  readonly latencies: number[];
}

interface Clients {
  readonly count: number;
  readonly counter: Counter;
  /** Waits until everything sent has been read. */
  settle(): Promise<void>;
  close(): void;
}

async function connect(served: Served, mode: Mode, requests: number): Promise<Clients> {
  const counter: Counter = { tokens: 0, bytes: 0, latencies: [] };
  const settle = async () => {
    for (let bytes = -1; bytes !== counter.bytes; ) {
      bytes = counter.bytes;
      await Bun.sleep(200);
    }
  };
  const count = Math.min(SSE_STREAMS, Math.ceil(requests / 16));
  const stopping = new AbortController();
  const { signal } = stopping;
  for (let i = 0; i < count; i += 1) {
    void readEvents(served.url, { counter, signal }).catch((error) => {
      if (!signal.aborted) throw error;
    });
  }
  await served.ready(mode === "sse" ? count * 16 : count);
  return { count, counter, settle, close: () => stopping.abort() };
}

async function readEvents(
  url: string,
  options: { counter: Counter; signal: AbortSignal },
): Promise<void> {
  const { counter, signal } = options;
  const response = await fetch(`${url}v1/completions`, {
    method: "POST",
    signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      prompt: [1, 2, 3, Math.floor(Math.random() * 1000)],
      n: 16,
      max_tokens: 1_000_000,
      stream: true,
      return_token_ids: true,
    }),
  });
  assert(response.status === 200, `the stream begins: ${response.status}`);
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of response.body ?? []) {
    const nowMs = wallMs();
    counter.bytes += bytes.length;
    // A piece may end within an event.
    const text = rest + decoder.decode(bytes, { stream: true });
    const end = text.lastIndexOf("\n") + 1;
    rest = text.slice(end);
    const ids = text.slice(0, end).matchAll(/"token_ids": ?\[([0-9,]+)\]/g);
    for (const [, list = ""] of ids) {
      counter.tokens += list.split(",").length;
      counter.latencies.push(stampAge(nowMs, Number(list.split(",")[0])));
    }
  }
}

const wallMs = () => performance.timeOrigin + performance.now();

function stampAge(nowMs: number, stamp: number): number {
  const now = Math.floor(nowMs * 100) % (STAMP_MASK + 1);
  return ((now - stamp + STAMP_MASK + 1) % (STAMP_MASK + 1)) / 100;
}

async function main(): Promise<void> {
  helpFrom(import.meta.path);
  const { values } = parseArgs({
    options: {
      requests: { type: "string", default: "16384" },
      seconds: { type: "string", default: "5" },
      draft: { type: "string", default: "grouped" },
      modes: { type: "string", default: MODES.join(",") },
      json: { type: "string" },
    },
  });
  const shape = {
    requests: Number(values.requests),
    seconds: Number(values.seconds),
    stepTokens: 4,
    draft: DRAFT_MODES.find((mode) => mode === values.draft) ?? "grouped",
    warmUpS: 3,
  };
  const rows: ServeRow[] = [];
  for (const mode of MODES) {
    if (!values.modes.split(",").includes(mode)) continue;
    // The proxy carries what the sidecar's streams carry: latencies compare at the same tokens a second.
    const sse = mode === "proxy" ? rows.find((row) => row.mode === "sse") : undefined;
    rows.push(await measure(mode, shape, sse?.tokens_per_s ?? null));
  }
  const proxy = rows.find(({ mode }) => mode === "proxy");
  for (const row of rows) {
    if (proxy !== undefined) row.over_proxy = row.tokens_per_cpu_s / proxy.tokens_per_cpu_s;
  }
  console.log(tableOf(rows));
  console.log(`load average ${loadavg()[0]?.toFixed(1)} on ${cpus().length} cores`);
  writeReport(values.json, { results: rows });
}

function tableOf(rows: readonly ServeRow[]): string {
  const paced = PACED_LOADS.map((load) => `at ${load * 100} %`);
  const table = new Table({
    head: [
      "to clients",
      "requests",
      "clients",
      "tokens/CPU s",
      "over proxy",
      "tokens/s",
      "bytes/token",
      ...paced.map((at) => `p50 / p99 ms ${at}`),
      "saturated",
    ],
    style: { head: [], border: [] },
  });
  const whole = (value: number) => Math.round(value).toLocaleString("en");
  for (const row of rows) {
    table.push([
      row.mode,
      whole(row.requests),
      whole(row.clients),
      whole(row.tokens_per_cpu_s),
      Number.isNaN(row.over_proxy) ? "" : `${row.over_proxy.toFixed(2)}x`,
      whole(row.tokens_per_s),
      row.bytes_per_token.toFixed(1),
      ...row.latencies.map(({ p50_ms, p99_ms }) => `${p50_ms.toFixed(1)} / ${p99_ms.toFixed(1)}`),
    ]);
  }
  return table.toString();
}

if (import.meta.main) await main();
