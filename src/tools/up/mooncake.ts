// Mooncake's store as the KV pool of the servers that `foretoken up` starts: where its master is found, how it is started,
// and each server's configuration. It starts nothing.
//
//   mooncake_master (one process): knows which segment holds each key; no KV passes through it
//   each server: a segment of its own memory for KV of all servers, and the connector (native/foretoken_vllm/mooncake.py)

import { mkdirSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname, join } from "node:path";
import { AppError } from "../../core/base/errors.ts";
import { ran } from "./find-vllm.ts";
import type { ServerSpec } from "./managed-server.ts";

const MIB = 1024 * 1024;
/** Default size of a server's segment, unless the machine has less memory. */
const SEGMENT_MIB = 1024;
const SEGMENT_MIB_MIN = 64;
/** Maximum share of the free memory for all segments together. */
const SHARE_MAX = 1 / 4;
/** Size of the buffer for transfers without a destination of their own; KV is copied directly into the servers' KV memory. */
const BUFFER_MIB = 64;
/**
 * Seconds for which a key that was looked up is kept: if a load takes longer, the KV is recomputed. The plugin's release of
 * finished KV (pool_release.py) waits for it.
 */
const LEASE_S = 5;
/** Seconds of silence after which a server and its segment are removed. Until then its keys are found, but fail to load. */
const CLIENT_TTL_S = 5;
const START_MS_MAX = 30_000;
const GRACE_MS = 5_000;

export interface FoundMooncake {
  /** Version of the Mooncake package. */
  readonly version: string;
  /** Path of the master's program. */
  readonly master: string;
}

const ASK =
  "import mooncake.store, mooncake, os, importlib.metadata as m; " +
  "names = [d.metadata['Name'] for d in m.distributions() if (d.metadata['Name'] or '').startswith('mooncake-transfer-engine')]; " +
  "print(m.version(names[0]) if names else 'unknown'); print(os.path.dirname(mooncake.__file__))";
const WORDS_MAX = 300;

/** Finds Mooncake. @throws AppError invalid_config: vLLM's environment cannot load it; the message names what is missing. */
export function findMooncake(python: string): FoundMooncake {
  const { output, problem } = ran([python, "-c", ASK]);
  const [version, folder] = output.split("\n");
  if (problem !== null || version === undefined || folder === undefined) {
    const message = (problem ?? output).split("\n").at(-1)?.slice(-WORDS_MAX) ?? "";
    const fix = /libibverbs|libnl/.test(message)
      ? "apt-get install libibverbs1"
      : "npm run vllm:install on a CPU, pip install mooncake-transfer-engine beside vLLM on GPUs";
    throw new AppError(
      "invalid_config",
      `--kv-connector mooncake: ${python} cannot load it: ${message}: ${fix}`,
    );
  }
  return { version, master: join(folder, "mooncake_master") };
}

/** Memory in MiB that each server gives to the pool. `given` null: as much as the machine can spare. */
export function segmentMib(
  given: number | null,
  machine: { availableBytes: number; servers: number },
): number {
  if (given !== null) return given;
  const spare = Math.floor((machine.availableBytes * SHARE_MAX) / machine.servers / MIB);
  return Math.max(SEGMENT_MIB_MIN, Math.min(SEGMENT_MIB, spare));
}

/** The master as a managed process. Its admin port answers /health, as a server's does. */
export function masterSpec(options: {
  found: FoundMooncake;
  host: string;
  rpcPort: number;
  adminPort: number;
  logPath: string;
}): ServerSpec {
  const { found, host, rpcPort, adminPort, logPath } = options;
  return {
    name: "mooncake-master",
    url: `http://${host}:${adminPort}`,
    command: [
      found.master,
      `--rpc_address=${host}`,
      `--rpc_port=${rpcPort}`,
      `--metrics_host=${host}`,
      `--metrics_port=${adminPort}`,
      `--rpc_thread_num=${Math.max(2, Math.min(8, availableParallelism()))}`,
      `--default_kv_lease_ttl=${LEASE_S}s`,
      `--client_ttl=${CLIENT_TTL_S}`,
      "--logtostderr=1",
    ],
    env: { ...process.env },
    logPath,
    startMsMax: START_MS_MAX,
    graceMs: GRACE_MS,
  };
}

/** Writes the configuration that every server reads at its start. `master`: "host:port". */
export function writePoolConfig(options: {
  configPath: string;
  master: string;
  segmentMib: number;
}): void {
  const { configPath, master, segmentMib: mib } = options;
  mkdirSync(dirname(configPath), { recursive: true });
  const config = {
    metadata_server: "P2PHANDSHAKE",
    master_server_address: master,
    global_segment_size: mib * MIB,
    local_buffer_size: BUFFER_MIB * MIB,
    protocol: "tcp",
    device_name: "",
  };
  writeFileSync(configPath, `${JSON.stringify(config, null, 2)}\n`);
}

/** Environment of a server that uses a pool; variables that are already set take precedence. */
export function poolEnvironment(host: string): Record<string, string> {
  return {
    // The address by which other servers reach it.
    VLLM_HOST_IP: host,
    // Otherwise 30 s each: while the master is away, every look-up would take that long.
    MC_RPC_TIMEOUT_MS: "2000",
    MC_RPC_CONNECT_TIMEOUT_MS: "1000",
    // For a load whose holder has stopped; four attempts are made. Default: none.
    MC_TCP_PROGRESS_TIMEOUT_SEC: "2",
    MC_TCP_STATUS_TIMEOUT_SEC: "2",
    // A block that was overwritten while it was read is an error, not KV of another text.
    MOONCAKE_STORE_CHECKSUM: "1",
  };
}
