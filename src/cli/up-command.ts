// `foretoken up`: starts vLLM servers as a rollout needs them, and Mooncake's master as their KV pool, keeps them running, and
// serves over them as `foretoken serve` does. Whatever ends it, no process of theirs is left.

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { type Log, stderrLog } from "../compose/log.ts";
import { FIELDS, type Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { BUNDLED_HF_MODEL, FOLDER } from "../host/installation.ts";
import { type FoundVllm, findVllm } from "../tools/up/find-vllm.ts";
import { gpusOf, gpusPerServer, visibleGpus } from "../tools/up/gpus.ts";
import { ensurePlugin, type PluginRunner, pluginRunner } from "../tools/up/install-plugin.ts";
import { launchOf, type PluginLaunch } from "../tools/up/launch.ts";
import { ManagedServer, type ServerEvent } from "../tools/up/managed-server.ts";
import {
  findMooncake,
  masterSpec,
  poolEnvironment,
  segmentMib,
  writePoolConfig,
} from "../tools/up/mooncake.ts";
import { freePort, freePorts } from "../tools/up/ports.ts";
import { commandOf } from "./command.ts";
import { checkExposure } from "./exposure.ts";
import { EXIT_INTERRUPTED } from "./output.ts";
import { SERVING_FIELDS, type ServingSettings, serveOver } from "./serve-command.ts";
import { type Signals, untilSignal } from "./signals.ts";

const SERVER_FIELDS = ["hfModel", "servers", "vllm", "logs", "startS", "contextTokens"] as const;
const OWN_FIELDS = [...SERVER_FIELDS, "plugin", "kvConnector", "kvSegmentMb"] as const;

type UpSettings = ServingSettings & Settings<(typeof OWN_FIELDS)[number]>;

/** Default port of the sidecar, as of `foretoken serve`. */
const PORT = 8000;
/** Address of the servers. A token alone protects them, and routes can change weights: only this machine may reach them. */
const SERVER_HOST = "127.0.0.1";
/** Time after a signal in which vLLM ends its open streams and its engine. */
const GRACE_MS = 10_000;

const EXAMPLES = `
Examples:
  $ npm run vllm:install                 once, without a GPU
  $ foretoken up --workers 2             two servers with the bundled model
  $ foretoken up --workers 2 --plugin    drafts inside vLLM's engine step
  $ foretoken up --plugin -- --speculative-config '{"method":"mtp","num_speculative_tokens":7}'
                                         beside the model's own MTP
  $ foretoken up --workers 2 --kv-connector mooncake
                                         KV transfer for requests that move
  $ foretoken up --model DIR --workers 4 -- --tensor-parallel-size 2
Arguments after -- are passed to every \`vllm serve\` and override Foretoken's.`;

export const upCommand = commandOf({
  name: "up",
  description: "Start vLLM servers on this machine, keep them running, and serve over them.",
  takes: ["[vllm-args...]", "more flags for `vllm serve`, after --"],
  help: EXAMPLES,
  fields: [...OWN_FIELDS, ...SERVING_FIELDS],
  defaults: { port: PORT },
  run: up,
});

async function up(given: UpSettings, vllmArgs: readonly string[]): Promise<number> {
  checkPoolSettings(given);
  const log = stderrLog(given.log);
  checkExposure(given, (reason) => log("warn", "insecure", { reason }));
  // Engines get the sidecar's port before it listens.
  const port = given.port === 0 ? freePort(given.host) : given.port;
  const settings = { ...given, port };
  const model = resolve(settings.hfModel ?? BUNDLED_HF_MODEL);
  if (!existsSync(join(model, "config.json"))) {
    const problem =
      settings.hfModel === null
        ? "--model DIR is required: this installation has no Hugging Face model"
        : `--model ${model} is no Hugging Face directory (no config.json)`;
    throw new AppError("usage", problem);
  }
  const found = findVllm(settings.vllm, FOLDER);
  log("info", "vllm", { version: found.build.version, command: found.command });
  // The plugin's package has the connector for the pool too.
  const pool = settings.kvConnector !== null ? openPool(settings, found.python, log) : null;
  if (settings.plugin || pool !== null) {
    const installed = await ensurePlugin({ python: found.python, root: FOLDER });
    log("info", "plugin", { installed });
  }
  const runner = settings.plugin ? pluginRunner(found.python) : null;
  if (runner !== null) log(runner.runner === 0 ? "warn" : "info", "plugin_runner", { ...runner });
  const stopping = untilSignal();
  let servers: readonly ManagedServer[] = [];
  // Runs last, also after an uncaught error.
  const killAll = () => {
    for (const server of servers) server.kill();
    pool?.master?.kill();
  };
  process.on("exit", killAll);
  try {
    await pool?.master?.start();
    servers = serversOf(settings, { model, found, vllmArgs, pool, runner, log });
    if (!(await areStarted(servers, stopping))) return EXIT_INTERRUPTED;
    const named = {
      worker: servers.map((server) => server.spec.url),
      workerToken: settings.workerToken,
      tokenizer: settings.tokenizer ?? model,
      servedModelName: settings.servedModelName ?? modelName(settings.hfModel),
      model: null,
      embedded: null,
    };
    return await serveOver(named, { settings, log, signals: stopping });
  } finally {
    log("info", "stopping_servers", { servers: servers.length });
    await Promise.all(servers.map((server) => server.stop()));
    await pool?.master?.stop();
    process.off("exit", killAll);
  }
}

/** Starts all servers; false: a signal stopped it. @throws AppError worker_failed: a server does not start. */
async function areStarted(servers: readonly ManagedServer[], stopping: Signals): Promise<boolean> {
  const started = Promise.all(servers.map((server) => server.start()));
  const first = await Promise.race([started, stopping.first.then(() => "stopped" as const)]);
  // A failure after the stop is expected.
  if (first === "stopped") started.catch(() => {});
  return first !== "stopped";
}

/** The model's name for clients and metrics: its folder's name. The servers' own name, the whole path, works too. */
export function modelName(folder: string | null): string {
  if (folder === null) return "foretoken-3m";
  const path = resolve(folder);
  const [, owner, name] = /\/models--([^/]+?)--([^/]+)\/snapshots\/[^/]+$/.exec(path) ?? [];
  return name === undefined ? basename(path) : `${owner}/${name}`;
}

function serversOf(
  settings: UpSettings,
  parts: {
    model: string;
    found: FoundVllm;
    vllmArgs: readonly string[];
    pool: UpPool | null;
    /** The plugin's model runner; null: no plugin; runner 0: it drafts nothing, and servers start as without it. */
    runner: PluginRunner | null;
    log: Log;
  },
): ManagedServer[] {
  const { model, found, vllmArgs, pool, runner, log } = parts;
  const gpus = found.build.isCpu
    ? null
    : gpusOf({
        visible: visibleGpus(process.env),
        servers: settings.servers,
        perServer: gpusPerServer(vllmArgs),
      });
  return freePorts(settings.servers, SERVER_HOST).map((port, index) => {
    const name = `vllm-${index}`;
    const launch = launchOf({
      command: found.command,
      build: found.build,
      model,
      host: SERVER_HOST,
      port,
      gpus: gpus?.[index] ?? null,
      contextTokens: settings.contextTokens,
      servedName: settings.servedModelName,
      apiKey: settings.workerToken,
      plugin: pluginOf(settings, name, runner?.runner ?? 0),
      pool,
      extraArgs: vllmArgs,
    });
    return new ManagedServer(
      {
        name,
        url: `http://${SERVER_HOST}:${port}`,
        command: launch.command,
        env: { ...launch.envDefaults, ...process.env, ...launch.env },
        logPath: resolve(settings.logs, `${name}.log`),
        startMsMax: settings.startS * 1000,
        graceMs: GRACE_MS,
      },
      (event) => logServerEvent(log, { name, port }, event),
    );
  });
}

/** Throws AppError usage if a setting of the pool can have no effect. */
function checkPoolSettings({ kvConnector, kvSegmentMb }: UpSettings): void {
  if (kvSegmentMb === null) return;
  const given = process.env.MOONCAKE_CONFIG_PATH;
  const isTheirs = given !== undefined && given !== "";
  if (kvConnector !== null && !isTheirs) return;
  const why = isTheirs
    ? `MOONCAKE_CONFIG_PATH=${given} sets it`
    : "it is for --kv-connector mooncake";
  throw new AppError("usage", `${FIELDS.kvSegmentMb.flag} has no effect here: ${why}`);
}

function pluginOf(settings: UpSettings, name: string, runner: 0 | 1 | 2): PluginLaunch | null {
  if (runner === 0) return null;
  const isAny = settings.host === "0.0.0.0" || settings.host === "::";
  const host = isAny ? SERVER_HOST : settings.host;
  return {
    draftUrl: `ws://${host.includes(":") ? `[${host}]` : host}:${settings.port}/v1/draft`,
    token: settings.apiToken,
    statsFile: resolve(settings.logs, `${name}.plugin.json`),
    runner,
  };
}

interface UpPool {
  /** Mooncake's master, not started yet; null: the pool is managed elsewhere. */
  readonly master: ManagedServer | null;
  readonly env: Readonly<Record<string, string>>;
  readonly envDefaults: Readonly<Record<string, string>>;
}

/** Prepares the KV pool. @throws AppError invalid_config: vLLM's environment lacks Mooncake, or cannot load it. */
function openPool(settings: UpSettings, python: string, log: Log): UpPool {
  const { servers, logs, kvSegmentMb } = settings;
  const host = SERVER_HOST;
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
  const mib = segmentMib(kvSegmentMb, { availableBytes: process.availableMemory(), servers });
  writePoolConfig({ configPath, master: `${host}:${rpcPort}`, segmentMib: mib });
  log("info", "kv_pool", {
    mooncake: found.version,
    master: `${host}:${rpcPort}`,
    admin: `http://${host}:${adminPort}`,
    segment_mb: mib,
    config: configPath,
  });
  // Mooncake's transfer engine ignores the configured address.
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

function logServerEvent(
  log: Log,
  server: { name: string; port: number },
  event: ServerEvent,
): void {
  const { kind, lines = [], ...fields } = { lines: [], ...event };
  const isEnd = kind === "died" || kind === "gave_up";
  log(isEnd ? "error" : kind === "restarts" ? "warn" : "info", `server_${kind}`, {
    ...server,
    ...fields,
  });
  for (const line of lines) log("error", "server_said", { name: server.name, line });
}
