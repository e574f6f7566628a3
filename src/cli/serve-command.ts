// `foretoken serve`: runs the sidecar until a signal stops it.

import { totalmem } from "node:os";
import { join } from "node:path";
import { Command } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import type { PoolOptions } from "../app.ts";
import { envName, FIELDS, type Settings } from "../config/fields.ts";
import { AppError } from "../core/base/errors.ts";
import { serverOf } from "../engines/kinds.ts";
import { VllmWorker } from "../engines/vllm/worker.ts";
import type { WorkerSource } from "../fleet/pool.ts";
import { bindServer } from "../serve.ts";
import type { BindOptions, BoundServer, RunningSidecar, ServeEvents } from "../serve-options.ts";
import { isLoopbackHost } from "../server/access.ts";
import { openRoots, type WeightsRoots } from "../server/control/weights-roots.ts";
import type { EngineAddress } from "../server/worker-registry.ts";
import {
  llamaSources,
  type ModelSide,
  type ModelWait,
  openModelSide,
  remoteSource,
} from "../sources.ts";
import { losslessness } from "../tools/doctor/sampling-check.ts";
import { addFields, givenFields, readFields, refuseGiven } from "./commander-fields.ts";
import { checkExposure } from "./exposure.ts";
import { errorWithStack, type Log, stderrLog } from "./log.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED } from "./output.ts";
import { catchUncaught, eventsOf, logUnread, UNREAD_LOGGED_MAX } from "./serve-events.ts";
import { type Signals, untilSignal } from "./signals.ts";

/** Options of every command that serves. */
export const SERVING_FIELDS = [
  "host",
  "port",
  "insecure",
  "allowOrigin",
  "tokenizer",
  "servedModelName",
  "chunkTokens",
  "policy",
  "draft",
  "apiToken",
  "weightsRoot",
  "workerToken",
  "historyMb",
  "journal",
  "minWorkers",
  "weightsTimeoutS",
  "drainS",
  "log",
  "config",
] as const;

const FIELD_NAMES = [
  "worker",
  "llama",
  "model",
  "slots",
  "kvTokens",
  "deterministic",
  ...SERVING_FIELDS,
] as const;

type ServeSettings = Settings<(typeof FIELD_NAMES)[number]>;
type EngineField =
  | ("worker" | "workerToken" | "tokenizer" | "servedModelName" | "historyMb")
  | ("llama" | "model" | "slots" | "kvTokens" | "deterministic");
type EngineSettings = Pick<ServeSettings, EngineField>;

const MIB = 1024 * 1024;
/** vLLM's own port. */
const PORT = 8000;
/** A server's requests are longer than those of the example job. */
const KV_TOKENS = 32_768;
/** From the end of serving to the end of the process, at most. */
const EXIT_MS_MAX = 1_000;
/** A retry with the id of a request whose client has left takes it over within this time. */
const RETRY_GRACE_MS = 30_000;

const EXAMPLES = `
Examples:
  $ foretoken serve --llama 2      two embedded engines on the bundled model
  $ foretoken serve --worker http://gpu-0:8000 --worker http://gpu-1:8000
  $ foretoken serve                engines come later, by POST /workers
  $ foretoken serve --config foretoken.toml`;

export function serveCommand(setStatus: (status: number) => void): Command {
  const command = new Command("serve")
    .description("Serve a pool of engines to a trainer as if it were one `vllm serve`.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES, { port: PORT, kvTokens: KV_TOKENS });
  return command.action(async () => {
    const settings = readFields(command, FIELD_NAMES);
    const log = stderrLog(settings.log);
    checkUseless(command, settings, log);
    setStatus(await serve(settings, log));
  });
}

const EMBEDDED_ONLY = ["slots", "kvTokens", "deterministic"] as const;

/** @throws AppError usage: a setting that was given can have no effect. One that was inherited is a warning. */
function checkUseless(command: Command, settings: ServeSettings, log: Log): void {
  if (settings.llama > 0) return;
  const of = "embedded engines (--llama)";
  refuseGiven(command, EMBEDDED_ONLY, `here: it is for ${of}, and there are none`);
  for (const name of givenFields(command, EMBEDDED_ONLY).inherited) {
    log("warn", "no_effect", { setting: envName(FIELDS[name]), reason: `it is for ${of}` });
  }
}

async function serve(settings: ServeSettings, log: Log): Promise<number> {
  warnIfExposed(settings, log);
  const count = settings.worker.length + settings.llama;
  if (count > 0 && settings.minWorkers > count) {
    const problem = `--min-workers is ${settings.minWorkers}, and there are ${count} workers`;
    throw new AppError("usage", problem);
  }
  const engines = { ...enginesOf(settings, log), hasFixed: count > 0 };
  // An invalid URL is reported before any wait.
  for (const engine of namedEngines(settings)) noticedSource(engine, log);
  const pool =
    settings.llama === 0 && settings.worker.every((url) => serverOf(url) !== null) && count > 0
      ? NO_POOL
      : POOL;
  return await serveOver(engines, { settings, log, stopping: untilSignal(), pool });
}

/** The settings of embedded engines where there are none. */
export const NO_EMBEDDED = {
  llama: 0,
  model: null,
  slots: 0,
  kvTokens: 0,
  deterministic: false,
  historyMb: 0,
} as const;

/** The engines that the settings name. */
export function enginesOf(settings: EngineSettings, log: Log): Engines {
  const { llama: llamaCount, model, tokenizer, servedModelName: servedName } = settings;
  const { deterministic } = settings;
  const own = (engine: EngineAddress) => withToken(engine, settings);
  return {
    model: (wait, registered) => {
      const engines = () => [...namedEngines(settings), ...registered().map(own)];
      const known = { engines, llamaCount, model, tokenizer, servedName, deterministic };
      return openModelSide(known, wait);
    },
    sources: (side) => sourcesOf(settings, side, log),
    sourceOf: (engine) => servedSource(own(engine), log),
    hasFixed: true,
  };
}

/** DRAM that the pool takes at most: a sixteenth of the machine's, which engines and their models need more of. */
const POOL_MEMORY_BYTES = Math.max(256 * MIB, Math.floor(totalmem() / 16));
const POOL: PoolOptions = {
  poolMemoryBytes: POOL_MEMORY_BYTES,
  poolDiskBytes: 4 * POOL_MEMORY_BYTES,
  poolDir: null,
};
/** vLLM servers hand no KV to the sidecar's pool. */
export const NO_POOL: PoolOptions = { poolMemoryBytes: 0, poolDiskBytes: 0, poolDir: null };

/** Sources of the engines, and the facts known about their model. */
export interface Engines {
  /** `registered`: engines that clients have named so far. */
  model(wait: ModelWait, registered: () => readonly EngineAddress[]): Promise<ModelSide>;
  sources(model: ModelSide): WorkerSource[];
  /** An engine that a client names. @throws AppError usage: the URL is none. */
  sourceOf(engine: EngineAddress): WorkerSource;
  /** false: the server starts without engines, and waits for clients to name some. */
  readonly hasFixed: boolean;
}

/** @throws AppError usage: no token protects an address that others can reach. */
export function warnIfExposed(
  settings: Pick<ServeSettings, "host" | "apiToken" | "insecure">,
  log: Log,
): void {
  const { host, apiToken, insecure } = settings;
  const protection = { token: apiToken, tokenFlag: "--api-token", insecure };
  const warning = checkExposure({ flag: "--host", host, ...protection });
  if (warning !== null) log("warn", "insecure", { reason: warning });
}

/** The settings that serving needs with every kind of engine. */
export type ServingSettings = Settings<(typeof SERVING_FIELDS)[number]>;

/**
 * Listens first, then finds out what the model is and opens the engines, and serves until a signal stops it. Returns
 * the exit status. @throws AppError: the address is taken, or no retry could open an engine.
 */
export async function serveOver(
  engines: Engines,
  parts: {
    settings: ServingSettings;
    log: Log;
    stopping: Signals;
    pool: PoolOptions;
  },
): Promise<number> {
  const { settings, log, stopping, pool } = parts;
  const weightsRoots = await weightsRootsOf(settings);
  const broken = Promise.withResolvers<never>();
  broken.promise.catch(() => undefined);
  const uncatch = catchUncaught(log);
  const joining = {
    sourceOf: (engine: EngineAddress) => engines.sourceOf(engine),
    hasFixed: engines.hasFixed,
    drainMs: settings.drainS * 1000,
  };
  const events = eventsOf(log, broken.reject);
  const bound = bindServer({
    ...bindOptionsOf(settings, events),
    ...{ ...pool, joining, weightsRoots },
  });
  log("info", "listening", { url: bound.url.origin });
  // For scripts that read stdout: every engine was tried once; the others are retried.
  let isAnnounced = false;
  const announce = () => {
    if (!isAnnounced) console.log(`foretoken on ${bound.url.origin}`);
    isAnnounced = true;
  };
  try {
    const model = await modelOf(engines, { bound, announce, log, stopping });
    if (model === null) return EXIT_INTERRUPTED;
    try {
      const running = await bound.serve(model, engines.sources(model));
      const failing = running.opened.then(announce).then(() => new Promise<never>(() => {}));
      try {
        return await Promise.race([
          untilStopped(running, stopping, settings, log),
          failing,
          broken.promise,
        ]);
      } finally {
        await running.stop();
      }
    } finally {
      model.llama?.close();
    }
  } finally {
    await bound.stop();
    uncatch();
    // An engine that is being connected to may answer late or never.
    setTimeout(() => process.exit(), EXIT_MS_MAX).unref();
  }
}

/** On loopback a caller reads files of this machine anyway. Beyond it, paths are allowed where the operator says so. */
async function weightsRootsOf({
  host,
  weightsRoot,
}: Pick<ServingSettings, "host" | "weightsRoot">): Promise<WeightsRoots> {
  if (weightsRoot.length === 0 && isLoopbackHost(host)) return null;
  return await openRoots(weightsRoot);
}

const NO_WORKER = 'no worker: POST /workers {"url": "http://HOST:PORT"} adds one';

/** null: stopped by a signal before the model was known. */
async function modelOf(
  engines: Engines,
  parts: { bound: BoundServer; announce: () => void; log: Log; stopping: Signals },
): Promise<ModelSide | null> {
  const { bound, announce, log, stopping } = parts;
  const stopped = new AbortController();
  const { registry } = bound;
  if (!engines.hasFixed) {
    bound.waitFor(NO_WORKER);
    announce();
    const came = await Promise.race([registry.first.then(() => true), stopping.first]);
    if (came !== true) return null;
    bound.waitFor("the model");
  }
  const wait: ModelWait = {
    tried: (problems) => {
      for (const problem of problems) log("warn", "model_unknown", { reason: problem });
      const reason = `no server has reported its model: ${problems.join("; ")}`;
      bound.waitFor(problems.length === 0 ? NO_WORKER : reason);
      announce();
    },
    signal: stopped.signal,
  };
  const model = engines.model(wait, () => registry.early);
  const first = await Promise.race([model, stopping.first.then(() => "stopped" as const)]);
  if (first !== "stopped") return first;
  log("info", "stopping", { state: "waiting for the model" });
  stopped.abort(new AppError("interrupted", "stopped by a signal"));
  const late = await model.catch(() => null);
  late?.llama?.close();
  return null;
}

function bindOptionsOf(
  settings: ServingSettings,
  events: ServeEvents,
): Omit<BindOptions, keyof PoolOptions | "joining" | "weightsRoots"> {
  const { journal } = settings;
  return {
    host: settings.host,
    port: settings.port,
    apiToken: settings.apiToken,
    allowOrigins: settings.allowOrigin,
    historyBytes: settings.historyMb * MIB,
    iterationsFile: journal === null ? null : join(journal, "iterations.json"),
    journal,
    policy: settings.policy,
    draft: settings.draft ?? "grouped",
    chunkTokens: settings.chunkTokens,
    workersMin: settings.minWorkers,
    retryGraceMs: RETRY_GRACE_MS,
    weightsTimeoutMs: settings.weightsTimeoutS * 1000,
    version: packageJson.version,
    events,
  };
}

function sourcesOf(settings: EngineSettings, model: ModelSide, log: Log): WorkerSource[] {
  const sources = namedEngines(settings).map((engine) => servedSource(engine, log));
  if (settings.llama === 0 || model.llama === null) return sources;
  const { contextTokens } = model.llama;
  const embedded = llamaSources(model.llama, {
    count: settings.llama,
    slots: settings.slots,
    kvTokens: settings.kvTokens,
    contextTokens: Math.min(contextTokens, settings.kvTokens),
    historyBytes: settings.historyMb * MIB,
  });
  return [...sources, ...embedded];
}

type Named = Pick<ServeSettings, "worker" | "workerToken">;

/** The engines that the operator named: they alone are sent the operator's token. */
function namedEngines({ worker, workerToken: token }: Named): EngineAddress[] {
  return worker.map((url) => ({ url, token }));
}

/** An engine that the operator named may leave and come back. */
function withToken({ url, token }: EngineAddress, { worker, workerToken }: Named): EngineAddress {
  const isNamed = worker.some((one) => URL.parse(one)?.href === URL.parse(url)?.href);
  return { url, token: token ?? (isNamed ? workerToken : null) };
}

/** A remote engine that serves only if its drafts do not change what it draws. */
function servedSource(engine: EngineAddress, log: Log): WorkerSource {
  const source = noticedSource(engine, log);
  const mayDraft = serverOf(engine.url)?.mayDraft === true;
  return mayDraft ? losslessSource(source, engine.token, log) : source;
}

/** A remote engine whose notices go to the log. */
function noticedSource({ url, token }: EngineAddress, log: Log): WorkerSource {
  return remoteSource(url, {
    token,
    notice: (worker, { kind, ...fields }) => log("warn", `worker_${kind}`, { worker, ...fields }),
  });
}

/** A server that drafts serves only if it still samples from its model's distribution; its drafts cannot be switched off here. */
function losslessSource(source: WorkerSource, token: string | null, log: Log): WorkerSource {
  return {
    ...source,
    open: async (options) => {
      const worker = await source.open(options);
      if (!(worker instanceof VllmWorker)) return worker;
      const found = await losslessness(source.name, token, worker.found);
      if (found.kind === "none") return worker;
      if (found.kind !== "faulty") {
        log("info", "drafts", { worker: source.name, state: found.kind, reason: found.reason });
        return worker;
      }
      await worker.close();
      const fix = "start it without --speculative-config";
      throw new AppError("not_lossless", `${source.name}: ${found.reason}: ${fix}`);
    },
  };
}

async function untilStopped(
  running: RunningSidecar,
  signals: Signals,
  settings: ServingSettings,
  log: Log,
): Promise<number> {
  await signals.first;
  if (!running.hasStarted) {
    log("info", "stopping", { state: "opening workers" });
    return EXIT_INTERRUPTED;
  }
  const unfinished = running.sidecar.rollout.unfinished;
  log("info", "draining", { unfinished, seconds: settings.drainS });
  const timeUp = new Promise<"time_up">((resolve) => {
    setTimeout(() => resolve("time_up"), settings.drainS * 1000).unref();
  });
  const outcome = await Promise.race([
    running.drain().then(() => "drained" as const, errorWithStack),
    signals.second.then(() => "second_signal" as const),
    timeUp,
  ]);
  for (const stream of running.streams().slice(0, UNREAD_LOGGED_MAX)) logUnread(log, stream);
  log(outcome === "drained" ? "info" : "warn", "stopped", {
    outcome,
    unfinished: running.sidecar.rollout.unfinished,
    streams: running.streams().length,
  });
  if (outcome === "drained") return 0;
  return outcome === "second_signal" ? EXIT_INTERRUPTED : EXIT_FAILED;
}
