// `foretoken serve`: the sidecar, until it is told to stop.

import { Command } from "commander";
import packageJson from "../../package.json" with { type: "json" };
import { AppError } from "../base/errors.ts";
import type { Settings } from "../config/fields.ts";
import { losslessness } from "../doctor/lossless.ts";
import {
  type BindOptions,
  type BoundServer,
  bindServer,
  KEPT_RESPONSES_MAX,
  KEPT_TOKENS_MAX,
  type RunningSidecar,
  type ServeEvents,
} from "../serve.ts";
import { describeControl } from "../server/control/describe.ts";
import type { IterationSummary } from "../server/iterations.ts";
import type { OpenStream } from "../server/open-streams.ts";
import type { WorkerSource } from "../server/worker-pool.ts";
import {
  llamaSources,
  type ModelSide,
  type ModelWait,
  openModelSide,
  remoteSource,
} from "../sources.ts";
import { addFields, readFields } from "./commander-fields.ts";
import { EXIT_FAILED, EXIT_INTERRUPTED } from "./exit.ts";
import { checkExposure } from "./exposure.ts";
import { createLog, type Log, type LogFields } from "./log.ts";
import { type Signals, untilSignal } from "./signals.ts";
import { catchUncaught } from "./uncaught.ts";

/** What every command that serves takes. */
export const SERVING_FIELDS = [
  "host",
  "port",
  "insecure",
  "allowHost",
  "allowOrigin",
  "tokenizer",
  "servedModelName",
  "contextTokens",
  "chunkTokens",
  "policy",
  "draft",
  "poolMemoryMb",
  "apiToken",
  "workerToken",
  "minWorkers",
  "requestsMax",
  "bodyMb",
  "bodiesMb",
  "bodyTimeoutS",
  "promptCharacters",
  "encodeTimeoutS",
  "retryGraceS",
  "weightsTimeoutS",
  "harmlessRpc",
  "drainS",
  "log",
  "logLevel",
  "config",
] as const;

const FIELD_NAMES = [
  "worker",
  "llama",
  "model",
  "slots",
  "kvTokens",
  "draftBudget",
  "deterministic",
  "mixedPrecision",
  ...SERVING_FIELDS,
] as const;

type ServeSettings = Settings<(typeof FIELD_NAMES)[number]>;

const MIB = 1024 * 1024;
/** vLLM's own port. */
const PORT = 8000;
/** A server's requests are longer than those of the example job. */
const KV_TOKENS = 32_768;
/**
 * Each chunk costs a server a request and what is left of a block of KV to compute again. Chunks of 512 end a simulated
 * iteration 3 % sooner than these, and move four times the KV (docs/SIMULATOR.md, what was tried and lost).
 */
export const SERVED_CHUNK_TOKENS = 2048;
/** From the end of serving to the end of the process, at most. */
const EXIT_MS_MAX = 1_000;
/** More groups than one iteration has (1,000). */
const GROUPS_MAX = 4096;

const EXAMPLES = `
Examples:
  $ foretoken serve --llama 2                                     two embedded engines on the bundled model
  $ foretoken serve --worker http://gpu-0:8000 --worker http://gpu-1:8000
  $ foretoken serve --config foretoken.toml
`;

export function serveCommand(setStatus: (status: number) => void): Command {
  const command = new Command("serve")
    .description("Stand in front of a pool of engines and look like one `vllm serve` to a trainer.")
    .addHelpText("after", EXAMPLES);
  addFields(command, FIELD_NAMES, {
    port: PORT,
    kvTokens: KV_TOKENS,
    chunkTokens: SERVED_CHUNK_TOKENS,
  });
  return command.action(async () => {
    setStatus(await serve(readFields(command, FIELD_NAMES)));
  });
}

async function serve(settings: ServeSettings): Promise<number> {
  if (settings.worker.length + settings.llama === 0) {
    throw new AppError("usage", "there is nothing to serve with: give --worker URL, or --llama N");
  }
  const log = stderrLog(settings);
  warnIfExposed(settings, log);
  const count = settings.worker.length + settings.llama;
  if (settings.minWorkers > count) {
    const problem = `--min-workers is ${settings.minWorkers}, and there are ${count} workers`;
    throw new AppError("usage", problem);
  }
  const engines: Engines = {
    model: (wait) =>
      openModelSide(
        {
          urls: settings.worker,
          llamaCount: settings.llama,
          model: settings.model,
          tokenizer: settings.tokenizer,
          servedName: settings.servedModelName,
          deterministic: settings.deterministic,
          token: settings.workerToken,
        },
        wait,
      ),
    sources: (model) => sourcesOf(settings, model, log),
  };
  // A URL that is none is seen before anything is waited for.
  for (const url of settings.worker) noticedSource(url, settings.workerToken, log);
  return await serveOver(engines, { settings, log, stopping: untilSignal() });
}

/** Where the engines come from, and what is known of their model. */
export interface Engines {
  model(wait: ModelWait): Promise<ModelSide>;
  sources(model: ModelSide): WorkerSource[];
}

export function stderrLog({ log, logLevel }: Pick<ServeSettings, "log" | "logLevel">): Log {
  return createLog(log, { level: logLevel, write: (line) => process.stderr.write(line) });
}

/** @throws AppError usage: no token protects an address that others can reach. */
export function warnIfExposed(
  { host, apiToken, insecure }: Pick<ServeSettings, "host" | "apiToken" | "insecure">,
  log: Log,
): void {
  const protection = { token: apiToken, tokenFlag: "--api-token", insecure };
  const warning = checkExposure({ flag: "--host", host, ...protection });
  if (warning !== null) log("warn", "insecure", { says: warning });
}

/** What serving needs of the settings, whoever the engines are. */
export type ServingSettings = Pick<
  ServeSettings,
  | "host"
  | "port"
  | "apiToken"
  | "allowHost"
  | "allowOrigin"
  | "bodyMb"
  | "bodiesMb"
  | "bodyTimeoutS"
  | "promptCharacters"
  | "encodeTimeoutS"
  | "minWorkers"
  | "requestsMax"
  | "policy"
  | "draft"
  | "chunkTokens"
  | "poolMemoryMb"
  | "retryGraceS"
  | "weightsTimeoutS"
  | "harmlessRpc"
  | "drainS"
> &
  Partial<Pick<ServeSettings, "mixedPrecision">>;

/**
 * Listens first, then finds out what the model is and opens the engines, and serves until it is told to stop. Returns
 * the exit status. @throws AppError: the address is taken, or no further try would open an engine.
 */
export async function serveOver(
  engines: Engines,
  parts: { settings: ServingSettings; log: Log; stopping: Signals },
): Promise<number> {
  const { settings, log, stopping } = parts;
  const broken = Promise.withResolvers<never>();
  broken.promise.catch(() => undefined);
  const uncatch = catchUncaught(log);
  const bound = bindServer(bindOptionsOf(settings, eventsOf(log, broken.reject)));
  log("info", "listening", { url: bound.url.origin });
  // For those who read stdout: it serves, or it has tried to and goes on trying.
  const announce = once(() => console.log(`foretoken on ${bound.url.origin}`));
  try {
    const model = await modelOf(engines, { bound, announce, log, stopping });
    if (model === null) return EXIT_INTERRUPTED;
    try {
      const running = bound.serve(model, engines.sources(model));
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
    // Whoever is being connected to may take long to answer, or never do.
    setTimeout(() => process.exit(), EXIT_MS_MAX).unref();
  }
}

/** null: it was told to stop before anybody said what the model is. */
async function modelOf(
  engines: Engines,
  parts: { bound: BoundServer; announce: () => void; log: Log; stopping: Signals },
): Promise<ModelSide | null> {
  const { bound, announce, log, stopping } = parts;
  const stopped = new AbortController();
  const model = engines.model({
    tried: (problems) => {
      for (const problem of problems) log("warn", "model_unknown", { reason: problem });
      bound.waitFor(`no server says what its model is: ${problems.join("; ")}`);
      announce();
    },
    signal: stopped.signal,
  });
  const first = await Promise.race([model, stopping.first.then(() => "stopped" as const)]);
  if (first !== "stopped") return first;
  log("info", "stopping", { state: "waiting for the model" });
  stopped.abort(new AppError("interrupted", "told to stop"));
  const late = await model.catch(() => null);
  late?.llama?.close();
  return null;
}

function once(act: () => void): () => void {
  let isDone = false;
  return () => {
    if (!isDone) act();
    isDone = true;
  };
}

function bindOptionsOf(settings: ServingSettings, events: ServeEvents): BindOptions {
  return {
    host: settings.host,
    port: settings.port,
    apiToken: settings.apiToken,
    edge: {
      allowHosts: settings.allowHost,
      allowOrigins: settings.allowOrigin,
      bodiesBytesMax: (settings.bodiesMb ?? 4 * settings.bodyMb) * MIB,
      bodyMsMax: settings.bodyTimeoutS * 1000,
    },
    encoder: {
      charactersMax: settings.promptCharacters,
      msMax: settings.encodeTimeoutS * 1000,
    },
    bodyBytesMax: settings.bodyMb * MIB,
    limits: {
      requestsMax: settings.requestsMax,
      groupsMax: GROUPS_MAX,
      keptTokensMax: KEPT_TOKENS_MAX,
      keptResponsesMax: KEPT_RESPONSES_MAX,
    },
    policy: settings.policy,
    draft: settings.draft ?? "grouped",
    chunkTokens: settings.chunkTokens,
    poolMemoryBytes: settings.poolMemoryMb * MIB,
    workersMin: settings.minWorkers,
    ...(settings.mixedPrecision && { mixedPrecision: settings.mixedPrecision }),
    retryGraceMs: settings.retryGraceS * 1000,
    weightsTimeoutMs: settings.weightsTimeoutS * 1000,
    harmlessRpc: settings.harmlessRpc,
    version: packageJson.version,
    events,
  };
}

function sourcesOf(settings: ServeSettings, model: ModelSide, log: Log): WorkerSource[] {
  const sources = settings.worker.map((url) => {
    const source = noticedSource(url, settings.workerToken, log);
    return url.startsWith("http") ? losslessSource(source, settings.workerToken, log) : source;
  });
  if (settings.llama === 0 || model.llama === null) return sources;
  const { contextTokens } = model.llama;
  const embedded = llamaSources(model.llama, {
    count: settings.llama,
    slots: settings.slots,
    kvTokens: settings.kvTokens,
    contextTokens: settings.contextTokens ?? Math.min(contextTokens, settings.kvTokens),
    draftBudget: settings.draftBudget,
  });
  return [...sources, ...embedded];
}

/** A remote engine whose notices go to the log. */
export function noticedSource(url: string, token: string | null, log: Log): WorkerSource {
  return remoteSource(url, {
    token,
    notice: (worker, { kind, ...fields }) => {
      // Told of every kind of worker, when the request has ended.
      if (kind !== "refused") log("warn", `worker_${kind}`, { worker, ...fields });
    },
  });
}

/** One that drafts serves only if it still draws what its model says: nobody here can switch its drafts off. */
function losslessSource(source: WorkerSource, token: string | null, log: Log): WorkerSource {
  return {
    ...source,
    open: async (options) => {
      const worker = await source.open(options);
      const found = await losslessness(source.name, token);
      if (found.kind === "none") return worker;
      if (found.kind !== "faulty") {
        log("info", "drafts", { worker: source.name, state: found.kind, says: found.told });
        return worker;
      }
      await worker.close();
      const fix = "start it without --speculative-config";
      throw new AppError("worker_failed", `${source.name}: ${found.told}: ${fix}`);
    },
  };
}

const CONTROL_PATHS: ReadonlySet<string> = new Set(describeControl().map(({ path }) => path));

function eventsOf(log: Log, broken: (error: unknown) => void): ServeEvents {
  return {
    workerChanged: ({ source, state, reason }) =>
      log(state === "ready" ? "info" : "warn", "worker", { worker: source.name, state, reason }),
    weightsChanged: (epoch, version) => log("info", "weights", { epoch, version }),
    weightsNotice: ({ kind, ...fields }) => log("warn", `weights_${kind}`, fields),
    notLossless: (engine) =>
      log("warn", "not_lossless", { engine, says: "its sampler misjudges drafts: it gets none" }),
    quarantined: (reason) => log("error", "quarantined", { reason }),
    answered: ({ status, ms, ...entry }) => {
      // A control call has a line of its own.
      if (CONTROL_PATHS.has(entry.path) && entry.method === "POST") return;
      const level = status >= 500 ? "warn" : status >= 400 ? "info" : "debug";
      log(level, "answered", { status, ms: Math.round(ms), ...entry });
    },
    controlled: ({ status, ms, ...entry }) =>
      log(status < 400 ? "info" : "warn", "control", { status, ms: Math.round(ms), ...entry }),
    refused: (entry) => log("warn", "refused", { ...entry }),
    iterationEnded: (summary) => log("info", "iteration", iterationFields(summary)),
    unread: (streams) => {
      log("warn", "waiting_for_readers", { streams: streams.length });
      for (const stream of streams.slice(0, UNREAD_TOLD)) logUnread(log, stream);
    },
    failed: (error) => log("error", "failed", { error: told(error) }),
    broken: (error) => {
      log("error", "broken", { error: told(error) });
      broken(error);
    },
  };
}

/** Of clients that do not read, so many are named. */
const UNREAD_TOLD = 10;

function logUnread(log: Log, { id, method, path, client, takenMs }: OpenStream): void {
  const seconds = rounded((performance.now() - takenMs) / 1000);
  log("warn", "not_read", { method, path, id, client, seconds });
}

function iterationFields(summary: IterationSummary): LogFields {
  const fields: Record<string, number> = {};
  for (const [name, value] of Object.entries(summary)) {
    fields[name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = rounded(value);
  }
  return fields;
}

function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
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
    running.drain().then(
      () => "drained" as const,
      (error: unknown) => told(error),
    ),
    signals.second.then(() => "second_signal" as const),
    timeUp,
  ]);
  for (const stream of running.streams().slice(0, UNREAD_TOLD)) logUnread(log, stream);
  log(outcome === "drained" ? "info" : "warn", "stopped", {
    outcome,
    unfinished: running.sidecar.rollout.unfinished,
    streams: running.streams().length,
  });
  if (outcome === "drained") return 0;
  return outcome === "second_signal" ? EXIT_INTERRUPTED : EXIT_FAILED;
}

function told(error: unknown): string {
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
