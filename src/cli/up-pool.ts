// The KV pool of `foretoken up`: Mooncake's master, started before the servers and kept running as they are, and what
// the servers get its address. An existing pool, given by MOONCAKE_CONFIG_PATH, is used unchanged.

import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { freemem, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { ManagedServer } from "../tools/up/managed-server.ts";
import {
  findMooncake,
  masterSpec,
  poolEnvironment,
  segmentMib,
  writePoolConfig,
} from "../tools/up/mooncake.ts";
import { freePorts } from "../tools/up/ports.ts";
import type { Log } from "./log.ts";
import { logServerEvent } from "./server-log.ts";

export interface UpPool {
  /** Not started yet. null: the pool is managed elsewhere. */
  readonly master: ManagedServer | null;
  readonly env: Readonly<Record<string, string>>;
  readonly envDefaults: Readonly<Record<string, string>>;
}

export interface UpPoolOptions {
  /** Of vLLM's environment. */
  readonly python: string;
  readonly host: string;
  readonly servers: number;
  /** null: what the machine can spare. */
  readonly segmentMib: number | null;
  /** Directory of the master's log. */
  readonly logs: string;
  readonly log: Log;
}

/** @throws AppError invalid_config: vLLM's environment lacks Mooncake, or cannot load it. */
export function openPool(options: UpPoolOptions): UpPool {
  const { python, host, servers, logs, log } = options;
  const found = findMooncake(python);
  // vLLM does not delete its look-up sockets; here they are deleted with the folder, and no other user can reach them.
  const folder = mkdtempSync(join(tmpdir(), "foretoken-pool-"));
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const sockets = { VLLM_RPC_BASE_PATH: folder };
  const given = process.env.MOONCAKE_CONFIG_PATH;
  if (given !== undefined && given !== "") {
    log("info", "kv_pool", { mooncake: found.version, config: given, master: "not started here" });
    return { master: null, env: {}, envDefaults: sockets };
  }
  const [rpcPort = 0, adminPort = 0] = freePorts(2, host);
  const configPath = join(folder, "mooncake.json");
  const mib = segmentMib(options.segmentMib, { availableBytes: availableBytes(), servers });
  writePoolConfig({ configPath, master: `${host}:${rpcPort}`, segmentMib: mib });
  log("info", "kv_pool", {
    mooncake: found.version,
    master: `${host}:${rpcPort}`,
    admin: `http://${host}:${adminPort}`,
    segment_mb: mib,
    config: configPath,
  });
  // Its transfer engine ignores the configured address.
  log("warn", "kv_pool_ports", {
    reason:
      "each server's Mooncake engine listens on 0.0.0.0, on two ports without a password: block them for other machines",
  });
  const logPath = resolve(logs, "mooncake-master.log");
  const spec = masterSpec({ found, host, rpcPort, adminPort, logPath });
  const master = new ManagedServer(spec, (event) =>
    logServerEvent(log, { name: spec.name, port: rpcPort }, event),
  );
  return {
    master,
    env: { MOONCAKE_CONFIG_PATH: configPath },
    envDefaults: { ...poolEnvironment(host), ...sockets },
  };
}

/** `freemem` does not count what the kernel's caches would give back. */
function availableBytes(): number {
  try {
    const [, kib] = /^MemAvailable:\s+(\d+)/m.exec(readFileSync("/proc/meminfo", "utf8")) ?? [];
    return kib === undefined ? freemem() : Number(kib) * 1024;
  } catch {
    return freemem();
  }
}
