// The systems that `bench:vllm` compares, and the sets of two vLLM servers that they run on. Systems whose servers are
// started alike share a set.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Fleet, memoryMib, ROOT } from "../../../test/vllm/fleet.ts";
import { Fillers, pin } from "./cores.ts";

export const SYSTEMS = [
  "plain",
  "least_loaded",
  "ngram",
  "suffix",
  "foretoken_http",
  "foretoken_pool",
  "foretoken_plugin",
  "foretoken_plugin_pool",
] as const;
export type SystemName = (typeof SYSTEMS)[number];

/** How a request gets its server: groups in turn, the fewest requests in flight, or by the sidecar. */
export type Routing = "turn" | "least_loaded" | "sidecar";

type SetName = "plain" | "ngram" | "suffix" | "pool" | "plugin" | "plugin_pool";

interface SystemKind {
  readonly servers: SetName;
  readonly routing: Routing;
  /** A run of it in which nothing was drafted is an error. */
  readonly drafts?: true;
}

const KINDS: Readonly<Record<SystemName, SystemKind>> = {
  plain: { servers: "plain", routing: "turn" },
  least_loaded: { servers: "plain", routing: "least_loaded" },
  ngram: { servers: "ngram", routing: "turn", drafts: true },
  suffix: { servers: "suffix", routing: "turn", drafts: true },
  foretoken_http: { servers: "plain", routing: "sidecar" },
  foretoken_pool: { servers: "pool", routing: "sidecar" },
  foretoken_plugin: { servers: "plugin", routing: "sidecar", drafts: true },
  foretoken_plugin_pool: { servers: "plugin_pool", routing: "sidecar", drafts: true },
};

export interface System {
  readonly name: SystemName;
  readonly routing: Routing;
  readonly drafts: boolean;
  readonly fleet: Fleet;
  /** The servers themselves. */
  readonly urls: readonly string[];
}

export type Dtype = "float32" | "bfloat16";

export interface LaunchSettings {
  /** A Hugging Face directory. */
  readonly model: string;
  readonly dtype: Dtype;
  readonly slots: number;
  /** 0: as many as vLLM makes of its memory. */
  readonly kvBlocks: number;
  /** null: the model's own. */
  readonly contextTokens: number | null;
  /** null: the sidecar's default. */
  readonly chunkTokens: number | null;
  /** Memory that each server gives to the KV pool. */
  readonly segmentMib: number;
  readonly ngramTokens: number;
  readonly suffixTokens: number;
}

/** A set's part of `up`'s command line and environment. */
function launchOf(
  name: SetName,
  { ngramTokens, suffixTokens, segmentMib }: LaunchSettings,
): { up: string[]; vllm: string[]; env: Record<string, string> } {
  const pool = ["--kv-connector", "mooncake", "--kv-segment-mb", String(segmentMib)];
  const drafting = (config: object) => ({
    up: [],
    vllm: ["--speculative-config", JSON.stringify(config)],
    // On a CPU vLLM's drafts are lossless at temperatures above 0 only with the repair (docs/VLLM.md).
    env: { FORETOKEN_REPAIR: "1" },
  });
  const up = (...flags: string[]) => ({ up: flags, vllm: [], env: {} });
  const lookup = { prompt_lookup_max: 4, prompt_lookup_min: 2 };
  const ngram = drafting({ method: "ngram", num_speculative_tokens: ngramTokens, ...lookup });
  return {
    plain: up(),
    // Its search runs in numba, which would set OpenMP, and torch with it, back to as many threads as there are
    // cores: with two servers on two cores steps then took five times as long.
    ngram: { ...ngram, env: { ...ngram.env, NUMBA_NUM_THREADS: "1" } },
    suffix: drafting({ method: "suffix", num_speculative_tokens: suffixTokens }),
    pool: up(...pool),
    plugin: up("--plugin"),
    plugin_pool: up("--plugin", ...pool),
  }[name];
}

/** Time in which the sidecar of a resumed set polls its servers again, and the plugins reconnect. */
const SETTLE_MS = 2500;
const READY_MS_MAX = 60_000;

/**
 * The sets of servers that are running. A set that is idle costs memory, and with a KV pool some CPU; without one it is
 * frozen, sidecar and all. A pool would miss its owners.
 */
export class Servers {
  readonly #sets = new Map<SetName, Fleet>();
  readonly #frozen = new Set<Fleet>();
  readonly fillers = new Fillers();
  readonly #settings: LaunchSettings;

  constructor(settings: LaunchSettings) {
    this.#settings = settings;
  }

  get fleets(): Fleet[] {
    return [...this.#sets.values()];
  }

  /** Starts the system's servers unless they run. */
  async open(system: SystemName): Promise<System> {
    const { servers, routing, drafts = false } = KINDS[system];
    const fleet = this.#sets.get(servers) ?? (await this.#start(servers, this.#settings));
    this.#sets.set(servers, fleet);
    const urls = fleet.servers.map(({ url }) => url);
    return { name: system, routing, drafts, fleet, urls };
  }

  /** Freezes all other sets. Resolves when the system's servers and sidecar answer. */
  async use({ fleet, urls }: System): Promise<void> {
    for (const other of this.fleets) {
      if (other !== fleet && !hasPool(other)) this.#freeze(other);
    }
    if (!this.#thaw(fleet)) return;
    for (const url of urls) await fetch(`${url}/health`);
    await Bun.sleep(SETTLE_MS);
    const untilMs = performance.now() + READY_MS_MAX;
    for (;;) {
      const states = await fleet.workerStates();
      if (states.every((state) => state === "ready")) return;
      if (performance.now() > untilMs) throw new Error(`workers that went on are ${states.join()}`);
      await Bun.sleep(100);
    }
  }

  #freeze(fleet: Fleet): void {
    if (this.#frozen.has(fleet)) return;
    this.#frozen.add(fleet);
    process.kill(fleet.pid, "SIGSTOP");
    for (const group of fleet.processGroups) process.kill(-group, "SIGSTOP");
  }

  /** false: it was not frozen. */
  #thaw(fleet: Fleet): boolean {
    if (!this.#frozen.delete(fleet)) return false;
    for (const group of fleet.processGroups) process.kill(-group, "SIGCONT");
    process.kill(fleet.pid, "SIGCONT");
    return true;
  }

  /** Closes all systems that run on the same servers. */
  async close(system: SystemName): Promise<void> {
    const { servers } = KINDS[system];
    const fleet = this.#sets.get(servers);
    if (fleet === undefined) return;
    this.#sets.delete(servers);
    this.#thaw(fleet);
    await fleet.stop();
  }

  async stop(): Promise<void> {
    for (const fleet of this.#frozen) this.#thaw(fleet);
    this.fillers.stop();
    await Promise.all(this.fleets.map((fleet) => fleet.stop()));
    this.#sets.clear();
  }

  async #start(name: SetName, settings: LaunchSettings): Promise<Fleet> {
    const { model, dtype, slots, kvBlocks, contextTokens, chunkTokens } = settings;
    const { up, vllm, env } = launchOf(name, settings);
    const startMs = performance.now();
    const previous = { ...process.env };
    Object.assign(process.env, env, { PYTHONPATH: import.meta.dir });
    try {
      const fleet = await Fleet.up([
        ...["--workers", "2", "--model", model, "--logs", join(ROOT, "out", "bench-vllm", name)],
        ...(chunkTokens === null ? [] : ["--chunk-tokens", String(chunkTokens)]),
        ...up,
        "--",
        ...["--dtype", dtype],
        ...["--max-num-seqs", String(slots), "--worker-extension-cls", "vllm_bench.Bench"],
        ...(kvBlocks === 0 ? [] : ["--num-gpu-blocks-override", String(kvBlocks)]),
        ...(contextTokens === null ? [] : ["--max-model-len", String(contextTokens)]),
        ...vllm,
      ]);
      const s = ((performance.now() - startMs) / 1000).toFixed(0);
      pin(fleet);
      const mib = memoryMib(fleet.processGroups);
      console.error(`started two servers: ${name}, ${s} s, ${mib} MiB`);
      return fleet;
    } finally {
      for (const key of Object.keys(process.env)) if (!(key in previous)) delete process.env[key];
      Object.assign(process.env, previous);
    }
  }
}

export function hasPool({ log }: Fleet): boolean {
  return log.some(({ event }) => event === "kv_pool");
}

export async function post(url: string, body: object): Promise<unknown> {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    // A response may wait for minutes; Bun's own limit is five.
    timeout: false,
  } as RequestInit);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  return await answer.json();
}

/** Token ids of the bundled prompts. */
export async function promptsOf(url: string, model: string, count: number): Promise<number[][]> {
  const text = readFileSync(join(ROOT, "model", "prompts.jsonl"), "utf8");
  const lines = text.split("\n").filter((line) => line !== "");
  if (lines.length < count) throw new Error(`${count} prompts are asked for, of ${lines.length}`);
  const prompts: number[][] = [];
  for (const line of lines.slice(0, count)) {
    const { prompt } = JSON.parse(line) as { prompt: string };
    const body = { model, prompt, add_special_tokens: false };
    const { tokens } = (await post(`${url}/tokenize`, body)) as { tokens: number[] };
    prompts.push(tokens);
  }
  return prompts;
}
