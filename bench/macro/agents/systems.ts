// Who places the requests that `bench:agents` compares, and where a request goes by each of them: the modes of the real
// vllm-router, affinity and turns in the bench itself, and Foretoken.

import { existsSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../../test/vllm/fleet.ts";
import type { System, SystemName } from "../vllm/systems.ts";

/** Options of `vllm-router` by mode; null: the bench or the sidecar places requests. */
const SYSTEMS = {
  round_robin: { set: "plain", router: null },
  sticky: { set: "plain", router: null },
  router_cache_aware: { set: "plain", router: [] },
  router_consistent_hash: { set: "plain", router: ["--policy", "consistent_hash"] },
  router_program: {
    set: "plain",
    router: ["--policy", "sticky_least_loaded", "--enable-program-scheduling"],
  },
  foretoken_http: { set: "foretoken_http", router: null },
  foretoken_plugin_pool: { set: "foretoken_plugin_pool", router: null },
} as const satisfies Record<string, { set: SystemName; router: readonly string[] | null }>;
export type AgentSystem = keyof typeof SYSTEMS;
export const AGENT_SYSTEMS = Object.keys(SYSTEMS) as AgentSystem[];

export function setOf(name: AgentSystem): SystemName {
  return SYSTEMS[name].set;
}

const PORT = 29_871;
const READY_MS_MAX = 60_000;

/** Where the requests of an iteration go. */
export interface Placing {
  /** Requests pass through Foretoken. */
  readonly isSidecar: boolean;
  /** The server for a request of a session. */
  readonly urlFor: (session: number) => string;
  /** Process of the router or the sidecar; null: the bench itself places requests. */
  readonly pid: number | null;
  readonly stop: () => Promise<void>;
}

export async function placing(name: AgentSystem, { fleet, urls }: System): Promise<Placing> {
  const stop = async (): Promise<void> => {};
  const at = (index: number): string => urls[index % urls.length] ?? "";
  if (name === "sticky") return { isSidecar: false, urlFor: at, pid: null, stop };
  if (name === "round_robin") {
    let sent = 0;
    return { isSidecar: false, urlFor: () => at(sent++), pid: null, stop };
  }
  const { router } = SYSTEMS[name];
  if (router === null) return { isSidecar: true, urlFor: () => fleet.url, pid: fleet.pid, stop };
  return await routerOf(urls, router);
}

async function routerOf(urls: readonly string[], mode: readonly string[]): Promise<Placing> {
  const url = `http://127.0.0.1:${PORT}`;
  const child = Bun.spawn(
    [
      routerCommand(),
      ...["--host", "127.0.0.1", "--port", String(PORT), "--worker-urls", ...urls],
      ...["--worker-startup-check-interval", "1", "--log-level", "error", ...mode],
    ],
    { stdout: "ignore", stderr: "ignore" },
  );
  const stop = async (): Promise<void> => {
    child.kill("SIGKILL");
    await child.exited;
  };
  const untilMs = performance.now() + READY_MS_MAX;
  for (;;) {
    const isReady = await fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isReady) return { isSidecar: false, urlFor: () => url, pid: child.pid, stop };
    if (child.exitCode !== null || performance.now() > untilMs) {
      await stop();
      throw new Error(`vllm-router ${mode.join(" ")} does not serve`);
    }
    await Bun.sleep(100);
  }
}

/** `vllm-router`, installed in the project's cache if it is not there. */
function routerCommand(): string {
  const folder = join(ROOT, ".cache", "vllm-router");
  const command = join(folder, "bin", "vllm-router");
  if (existsSync(command)) return command;
  for (const args of [
    ["python3", "-m", "venv", folder],
    [join(folder, "bin", "pip"), "install", "--quiet", "vllm-router==0.1.17"],
  ]) {
    const { exitCode, stderr } = Bun.spawnSync(args);
    if (exitCode !== 0) throw new Error(`${args.join(" ")}: ${stderr.toString()}`);
  }
  return command;
}
