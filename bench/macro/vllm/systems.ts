// The systems that `bench:vllm` compares, and the sets of two vLLM servers that they run on. Systems whose servers are
// started alike share a set.

import { join } from "node:path";
import { findVllm } from "../../../src/tools/up/find-vllm.ts";
import { ensurePlugin } from "../../../src/tools/up/install-plugin.ts";
import { Fleet, memoryMib, ROOT, vllmMissing } from "../../../test/vllm/fleet.ts";
import { Fillers, pin, separate } from "./cores.ts";

type SetName = "plain" | "ngram" | "suffix" | "pool" | "plugin" | "plugin_pool";

interface SystemKind {
  readonly servers: SetName;
  /** How a request gets its server: groups in turn, the fewest requests in flight, or by the sidecar. */
  readonly routing: "turn" | "least_loaded" | "sidecar";
  /** A run of it in which nothing was drafted is an error. */
  readonly drafts: boolean;
}

const KINDS = {
  plain: { servers: "plain", routing: "turn", drafts: false },
  least_loaded: { servers: "plain", routing: "least_loaded", drafts: false },
  ngram: { servers: "ngram", routing: "turn", drafts: true },
  suffix: { servers: "suffix", routing: "turn", drafts: true },
  foretoken_http: { servers: "plain", routing: "sidecar", drafts: false },
  foretoken_pool: { servers: "pool", routing: "sidecar", drafts: false },
  foretoken_plugin: { servers: "plugin", routing: "sidecar", drafts: true },
  foretoken_plugin_pool: { servers: "plugin_pool", routing: "sidecar", drafts: true },
} as const satisfies Record<string, SystemKind>;
export type SystemName = keyof typeof KINDS;
export const SYSTEMS = Object.keys(KINDS) as SystemName[];

export interface System extends SystemKind {
  readonly name: SystemName;
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
    const kind = KINDS[system];
    const fleet = this.#sets.get(kind.servers) ?? (await this.#start(kind.servers, this.#settings));
    this.#sets.set(kind.servers, fleet);
    const urls = fleet.servers.map(({ url }) => url);
    return { name: system, ...kind, fleet, urls };
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
    const fleet = await Fleet.up(
      [
        ...["--workers", "2", "--model", model, "--logs", join(ROOT, "out", "bench-vllm", name)],
        ...(chunkTokens === null ? [] : ["--chunk-tokens", String(chunkTokens)]),
        ...up,
        "--",
        ...["--dtype", dtype],
        ...["--max-num-seqs", String(slots), "--worker-extension-cls", "vllm_bench.Bench"],
        ...(kvBlocks === 0 ? [] : ["--num-gpu-blocks-override", String(kvBlocks)]),
        ...(contextTokens === null ? [] : ["--max-model-len", String(contextTokens)]),
        ...vllm,
      ],
      { ...env, PYTHONPATH: import.meta.dir },
    );
    const s = ((performance.now() - startMs) / 1000).toFixed(0);
    pin(fleet);
    const mib = memoryMib(fleet.processGroups);
    console.error(`started two servers: ${name}, ${s} s, ${mib} MiB`);
    return fleet;
  }
}

export function hasPool({ log }: Fleet): boolean {
  return log.some(({ event }) => event === "kv_pool");
}

/** Opens all systems and runs the bench on them; whatever ends it, their servers are stopped. @throws Error: there is no vLLM. */
export async function withServers<Name extends string>(
  names: readonly Name[],
  parts: {
    readonly launch: LaunchSettings;
    /** The servers of a system of the bench. */
    readonly setOf: (name: Name) => SystemName;
  },
  bench: (
    systems: ReadonlyMap<Name, System>,
    servers: Servers,
    machine: Awaited<ReturnType<typeof separate>>,
  ) => Promise<void>,
): Promise<void> {
  const missing = vllmMissing();
  if (missing !== null) throw new Error(missing);
  const servers = new Servers(parts.launch);
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => void servers.stop().finally(() => process.exit(130)));
  }
  try {
    // What makes vLLM's own drafts lossless on a CPU is in the plugin's package, too.
    await ensurePlugin({
      python: findVllm(process.env.FORETOKEN_VLLM ?? null, ROOT).python,
      root: ROOT,
    });
    const { urls } = await servers.open("plain");
    const machine = await separate(urls, parts.launch.model, servers.fillers);
    // All before anything is measured: servers that do not start end the bench at once.
    const systems = new Map<Name, System>();
    for (const name of names) systems.set(name, await servers.open(parts.setOf(name)));
    await bench(systems, servers, machine);
  } finally {
    await servers.stop();
  }
}
