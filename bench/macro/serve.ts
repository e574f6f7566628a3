// What one core of the sidecar carries: tokens a second from workers' batches through the rollout to clients, as SSE, beside
// a plain reverse proxy in Bun in the same run; and what it adds to a token's way. The sidecar is a process of its own; so is
// the proxy. Tokens per CPU second of that process are what counts: clients and workers have cores of their own in life, and
// here they share them.
//
// Latency is taken at a quarter and at half of what the machine carries (the same steps, spread evenly over time),
// and at all of it; the proxy's at the same tokens a second.
//
//   bun bench/macro/serve.ts [--requests 16384] [--seconds 5] [--draft grouped] [--modes sse,proxy] [--json FILE]

import { assert } from "../../src/core/base/assert.ts";
import { DRAFT_MODES, type DraftMode } from "../../src/core/draft/registry.ts";
import { figureTable, flagsOf, oneOf, someOf, writeReport } from "../harness.ts";
import { Child, GROUP_SIZE, type Load, type Ran, STAMP_MASK, stamp } from "./serve-process.ts";

/** sse: streams of the sidecar. proxy: the same bytes through a plain reverse proxy. */
const MODES = ["sse", "proxy"] as const;
type Mode = (typeof MODES)[number];

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

/** The processes of a mode. */
async function started(mode: Mode, draft: DraftMode) {
  if (mode === "sse") {
    const sidecar = new Child("--role", "sidecar", "--draft", draft);
    return { url: await sidecar.url, behind: sidecar, proxy: null };
  }
  const behind = new Child("--role", "upstream");
  const proxy = new Child("--role", "proxy", "--upstream", await behind.url);
  return { url: await proxy.url, behind, proxy };
}

const SSE_STREAMS = 256;
/** Shares of the capacity at which latency is taken, besides at all of it. */
const PACED_LOADS = [0.25, 0.5];

type Row = Awaited<ReturnType<typeof measure>>;

/** `capacity`: tokens/s that paced loads are shares of; null: the mode's own. */
export async function measure(mode: Mode, shape: ServeShape, capacity: number | null = null) {
  const { requests, draft, warmUpS, seconds, stepTokens } = shape;
  const { url, behind, proxy } = await started(mode, draft);
  const clients = new Clients();
  try {
    const count = Math.min(SSE_STREAMS, Math.ceil(requests / GROUP_SIZE));
    clients.connect(url, count);
    await behind.ready(proxy === null ? count * GROUP_SIZE : count);
    const run = async (load: Load): Promise<Ran> => {
      const [ran, proxied] = await Promise.all([behind.run(load), proxy?.run(load)]);
      await clients.settled();
      return { ...ran, cpuUs: proxied?.cpuUs ?? ran.cpuUs };
    };
    const load = { seconds, stepTokens, tokensPerS: null };
    if (warmUpS > 0) {
      await run({ ...load, seconds: warmUpS });
      clients.reset();
    }
    const full = await run(load);
    const { tokens, bytes } = clients;
    const tokensPerS = full.tokensOut / full.seconds;
    const saturated = { load: null, tokens_per_s: tokensPerS, ...clients.latency() };
    const paced: (Omit<typeof saturated, "load"> & { load: number | null })[] = [];
    for (const share of PACED_LOADS) {
      const ran = await run({ ...load, tokensPerS: (capacity ?? tokensPerS) * share });
      const reached = ran.tokensOut / ran.seconds;
      paced.push({ load: share, tokens_per_s: reached, ...clients.latency() });
    }
    return {
      mode,
      requests,
      clients: count,
      tokens_per_cpu_s: full.tokensOut / (full.cpuUs / 1e6),
      /** Rate on this machine, clients included: the capacity that paced loads are shares of. */
      tokens_per_s: tokensPerS,
      bytes_per_token: bytes / full.tokensOut,
      /** Latencies from a worker's step to the client's frame, including the clients' own wait for a core. */
      latencies: [...paced, saturated],
      /** Tokens that clients counted, of those that were sent to them. */
      received_share: tokens / full.tokensOut,
    };
  } finally {
    clients.close();
    await proxy?.stop();
    await behind.stop();
  }
}

/** Reads streams, and counts what they bring. */
class Clients {
  tokens = 0;
  bytes = 0;
  /** Milliseconds that the first token of each frame took. */
  #latencies: number[] = [];
  readonly #stopping = new AbortController();

  connect(url: string, count: number): void {
    const { signal } = this.#stopping;
    for (let i = 0; i < count; i += 1) {
      void this.#read(url, signal).catch((error) => {
        if (!signal.aborted) throw error;
      });
    }
  }

  close(): void {
    this.#stopping.abort();
  }

  reset(): void {
    this.tokens = 0;
    this.bytes = 0;
    this.#latencies = [];
  }

  /** Resolves when everything sent has been read. */
  async settled(): Promise<void> {
    for (let bytes = -1; bytes !== this.bytes; ) {
      bytes = this.bytes;
      await Bun.sleep(200);
    }
  }

  /** Of the frames since the last call. */
  latency(): { p50_ms: number; p99_ms: number } {
    const sorted = this.#latencies.splice(0).sort((a, b) => a - b);
    const at = (share: number) => sorted[Math.floor(sorted.length * share)] ?? Number.NaN;
    return { p50_ms: at(0.5), p99_ms: at(0.99) };
  }

  async #read(url: string, signal: AbortSignal): Promise<void> {
    const asked = { n: GROUP_SIZE, max_tokens: 1_000_000, stream: true, return_token_ids: true };
    const prompt = [1, 2, 3, Math.floor(Math.random() * 1000)];
    const response = await fetch(`${url}v1/completions`, {
      method: "POST",
      signal,
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ prompt, ...asked }),
    });
    assert(response.status === 200, `the stream begins: ${response.status}`);
    const decoder = new TextDecoder();
    let rest = "";
    for await (const bytes of response.body ?? []) {
      const now = stamp();
      this.bytes += bytes.length;
      // A piece may end within an event.
      const text = rest + decoder.decode(bytes, { stream: true });
      const end = text.lastIndexOf("\n") + 1;
      rest = text.slice(end);
      for (const [, list = ""] of text.slice(0, end).matchAll(/"token_ids": ?\[([0-9,]+)\]/g)) {
        const ids = list.split(",");
        this.tokens += ids.length;
        this.#latencies.push(((now - Number(ids[0]) + STAMP_MASK + 1) % (STAMP_MASK + 1)) / 100);
      }
    }
  }
}

async function main(): Promise<void> {
  const defaults = { requests: 16_384, seconds: 5, draft: "grouped", modes: null } as const;
  const { requests, seconds, json, ...flags } = flagsOf(import.meta.path, defaults);
  const draft = oneOf("draft", flags.draft, DRAFT_MODES);
  const shape = { requests, seconds, stepTokens: 4, draft, warmUpS: 3 };
  const rows = new Map<Mode, Row>();
  const wanted = someOf("modes", flags.modes, MODES);
  for (const mode of MODES.filter((one) => wanted.includes(one))) {
    // The proxy carries what the sidecar's streams carry: latencies compare at the same tokens a second.
    rows.set(mode, await measure(mode, shape, rows.get("sse")?.tokens_per_s));
  }
  const base = rows.get("proxy")?.tokens_per_cpu_s ?? Number.NaN;
  console.log(tableOf(rows, base));
  const results = Array.from(rows.values(), (row) => {
    return { ...row, over_proxy: row.tokens_per_cpu_s / base };
  });
  writeReport(json, { results });
}

/** `base`: the proxy's tokens per CPU second; NaN: it was not run. */
function tableOf(rows: ReadonlyMap<string, Row>, base: number): string {
  const whole = (value: number) => Math.round(value).toLocaleString("en");
  const latency = (row: Row, i: number) => {
    const { p50_ms, p99_ms } = row.latencies[i] ?? { p50_ms: Number.NaN, p99_ms: Number.NaN };
    return `${p50_ms.toFixed(1)} / ${p99_ms.toFixed(1)}`;
  };
  return figureTable(rows, [
    ["requests", (row) => whole(row.requests)],
    ["clients", (row) => whole(row.clients)],
    ["tokens/CPU s", (row) => whole(row.tokens_per_cpu_s)],
    ["x the proxy's", (row) => (row.tokens_per_cpu_s / base).toFixed(2)],
    ["tokens/s", (row) => whole(row.tokens_per_s)],
    ["bytes/token", (row) => row.bytes_per_token.toFixed(1)],
    ["p50 / p99 ms at 25 %", (row) => latency(row, 0)],
    ["p50 / p99 ms at 50 %", (row) => latency(row, 1)],
    ["p50 / p99 ms, saturated", (row) => latency(row, 2)],
  ]);
}

if (import.meta.main) await main();
