// The wiring of the sidecar: workers of every kind, the KV pool, the rollout, and the server in front of them.

import { openPool, randomWord, wallClock } from "./app.ts";

import { AppError, errorText } from "./core/base/errors.ts";
import { type WeightEpoch, weightEpoch } from "./core/base/ids.ts";
import { type HeldWeights, lastWeights, savedWeights } from "./core/journal/held-weights.ts";
import type { EmbeddedKvPool } from "./core/kv/embedded-pool.ts";
import { loadCore } from "./core/wasm/load.ts";
import { featuresOf } from "./features.ts";
import { openRunFiles, type RunJournals } from "./host/journal-file.ts";
import { type Timers, timersOf } from "./host/timers.ts";
import { type KeptLevels, meteredBy } from "./metered.ts";
import type { Metrics } from "./observe/metrics/metrics.ts";
import { WorkerPool } from "./pool/pool.ts";
import { draftsOf } from "./serve-drafts.ts";
import type {
  BindOptions,
  BoundServer,
  RunningSidecar,
  ServeEvents,
  ServeOptions,
} from "./serve-options.ts";
import { routesOf } from "./serve-routes.ts";
import { LearnedEpochs } from "./server/control/learned-epochs.ts";
import { WeightUpdates } from "./server/control/weights.ts";
import { delivered } from "./server/delivery.ts";
import { PoolCalls } from "./server/engine-calls.ts";
import { EngineEncoder } from "./server/engine-encoder.ts";
import { PromptHistory } from "./server/history/prompt-history.ts";
import { type HttpOptions, type HttpServer, type Served, serveHttp } from "./server/http.ts";
import { LiveView } from "./server/live/view.ts";
import { type SavedRequest, savedRequest } from "./server/openai/request-journals.ts";
import { type SavedRollout, savedRollout } from "./server/rollouts/journal.ts";
import type { KnownRollouts } from "./server/rollouts/known.ts";
import { Sidecar } from "./server/sidecar.ts";
import { starting } from "./server/starting.ts";
import { StreamService } from "./server/stream/service.ts";
import { WorkerRegistry, type WorkerRegistryOptions } from "./server/worker-registry.ts";
import type { ModelSide } from "./sources.ts";
import { type EncoderLimits, ThreadedEncoder } from "./text/encoder.ts";

const EPOCH = weightEpoch(0);
/** A million tokens of English, and what the slower of the two kinds of tokenizer takes for them. */
const ENCODER_LIMITS: EncoderLimits = { charactersMax: 4 * 1024 * 1024, msMax: 30_000 };
const NONE_JOINS: WorkerRegistryOptions = {
  sourceOf: () => {
    throw new AppError("forbidden", "this server takes no workers after its start");
  },
  hasFixed: true,
  drainMs: 0,
};
const FRAME_BYTES_MAX = 1024 * 1024;
/** Prompts and finished responses kept for their siblings to come. */
export const KEPT_BYTES_MAX = 256 * 1024 * 1024;
export const KEPT_RESPONSES_MAX = 65_536;

/** Resolves when each worker has been tried once. @throws AppError: as `bindServer` and `RunningSidecar.opened`. */
export async function startSidecar(options: ServeOptions): Promise<RunningSidecar> {
  const running = await bindServer(options).serve(options.model, options.sources);
  try {
    await running.opened;
    return running;
  } catch (error) {
    await running.stop();
    throw error;
  }
}

/** @throws AppError: the address is taken. */
export function bindServer(options: BindOptions): BoundServer {
  let waitsFor = "the model";
  let metrics: Metrics | null = null;
  const registry = new WorkerRegistry(options.joining ?? NONE_JOINS);
  const http = listening(options, {
    ...starting({ version: options.version, waitsFor: () => waitsFor, routes: registry.routes() }),
    answered: (entry) => {
      metrics?.answered(entry.status);
      options.events.answered(entry);
    },
  });
  return {
    url: http.url,
    registry,
    waitFor: (what) => {
      waitsFor = what;
    },
    serve: async (model, sources) => {
      const { poolMemoryBytes, poolDiskBytes = 0, poolDir = null } = options;
      const journals =
        options.journal == null
          ? null
          : openRunFiles(options.journal, options.events.journalFailed);
      const history = await openHistory(options, model);
      const kv = await openPool({ poolMemoryBytes, poolDiskBytes, poolDir });
      const parts = { http, kv, registry, history, journals };
      try {
        const running = serveWith({ ...options, model, sources }, parts);
        metrics = running.metrics;
        return running;
      } catch (error) {
        await journals?.release();
        throw error;
      }
    },
    stop: () => http.stop(),
  };
}

/** @throws AppError invalid_config: the file cannot be used. */
async function openHistory(
  { historyBytes = 0, historyFile = null, events }: BindOptions,
  model: ModelSide,
): Promise<PromptHistory | null> {
  if (historyBytes === 0) return null;
  const history = new PromptHistory({ limitBytes: historyBytes, model: model.names[0] });
  if (historyFile !== null) await history.keepIn(historyFile, events.failed);
  return history;
}

function listening(
  options: BindOptions,
  served: Served & Pick<HttpOptions, "answered">,
): HttpServer {
  try {
    return serveHttp({
      ...served,
      host: options.host,
      port: options.port,
      apiToken: options.apiToken,
      bodyBytesMax: options.bodyBytesMax,
      ...options.edge,
      frameBytesMax: FRAME_BYTES_MAX,
      failed: options.events.failed,
    });
  } catch (cause) {
    if (cause instanceof AppError) throw cause;
    const where = `${options.host}:${options.port}`;
    const isTaken = String(Reflect.get(Object(cause), "code")) === "EADDRINUSE";
    const reason = isTaken
      ? `the port is in use by another process; --port 0 takes a free one`
      : errorText(cause);
    throw new AppError("invalid_config", `${where}: ${reason}`, { cause });
  }
}

/** @throws AppError: the core cannot be loaded. */
function serveWith(
  options: ServeOptions,
  parts: {
    http: HttpServer;
    kv: EmbeddedKvPool;
    registry: WorkerRegistry;
    history: PromptHistory | null;
    journals: RunJournals | null;
  },
): RunningSidecar & { readonly metrics: Metrics } {
  const { http, kv, registry, history, journals } = parts;
  const { events } = options;
  const { failed } = events;
  const timers = timersOf(failed);
  const { afterwards, repeatedly } = timers;
  const saved = savedIn(journals);
  const journaled = [...saved.requests, ...saved.rollouts, ...heldIn(journals)];
  const before = lastWeights(journaled);
  let resume = () => {};
  const pool = new WorkerPool({
    before,
    sources: options.sources,
    later: afterwards,
    controlMsMax: options.weightsTimeoutMs,
    changed: (member) => {
      workersChanged();
      resume();
      events.workerChanged(member);
    },
    workersMin: options.workersMin ?? 1,
  });
  const sidecar = sidecarOf(options, { kv, history, timers, epoch: before?.epoch ?? EPOCH });
  const weights = new WeightUpdates({
    sidecar,
    pool,
    modelNames: options.model.names,
    ...(before === null ? {} : { base: before.base }),
    clock: wallClock,
    timeoutMs: options.weightsTimeoutMs,
    later: afterwards,
    notice: (notice) => events.weightsNotice(notice),
    held: (seconds) => metrics.weightsUpdated(seconds),
    ...(journals && { kept: () => journals.weights.settled() }),
  });
  for (const one of savedWeights(journaled)) weights.name(one.epoch, one.version);
  const learned = new LearnedEpochs({
    ...{ sidecar, pool, weights, clock: wallClock, later: afterwards },
    stale: (notice) => events.weightsNotice({ kind: "stale", ...notice }),
  });
  const { text, openTextThread: openThread } = options.model;
  const engines = new PoolCalls({ pool, sidecar, later: afterwards });
  const encoder =
    openThread === null
      ? new EngineEncoder(engines, ENCODER_LIMITS)
      : new ThreadedEncoder({ text, openThread, limits: ENCODER_LIMITS });
  const stream = new StreamService({
    sidecar,
    text,
    random: randomWord,
    every: repeatedly,
    failed,
  });
  const drafts = draftsOf(options, sidecar, { history, timers });
  const live = new LiveView({
    ...{ sidecar, pool, weights, clock: wallClock, every: repeatedly, failed },
    nowS: () => Date.now() / 1000,
    iterationsFile: options.iterationsFile ?? null,
    completedBytesMax: options.completedBytes ?? 0,
    changed: (state) => events.stateChanged(state),
  });
  const features = featuresOf({
    ...{ sidecar, pool, weights, learned, stream, drafts, live, history, text, events, timers },
    metrics: () => metrics,
  });
  const kept: KeptLevels = Object.assign({}, ...features.map((feature) => feature.kept));
  const { metrics, workersChanged } = meteredBy(sidecar, {
    ...{
      pool,
      kv,
      stream,
      learned,
      telemetry: drafts.telemetry,
      modelName: options.model.names[0],
      kept,
      live,
    },
  });
  pool.attach(sidecar);
  const { routes, rollouts, requestJournals } = routesOf(options, {
    sidecar,
    encoder,
    engines,
    pool,
    registry,
    weights,
    learned,
    metrics,
    kept,
    journals,
    timers,
    more: features.flatMap((feature) => feature.routes ?? []),
  });
  rollouts.adopt(saved.rollouts);
  requestJournals?.adopt(saved.requests);
  http.serve({ routes, sockets: { "/v1/stream": stream, "/v1/draft": drafts.service } });
  resume = () => {
    if (resumed(rollouts, { pool, sidecar, events })) resume = () => {};
  };
  const opened = pool.open();
  registry.attach(pool);
  // Callers that await it get the error; an unhandled rejection would end the process.
  opened.catch(() => undefined);
  return {
    url: http.url,
    sidecar,
    metrics,
    opened,
    get hasStarted() {
      return pool.hasStarted;
    },
    streams: () => http.streams(),
    drain: async () => {
      await sidecar.drain();
      for (const { drained } of features) drained?.();
      await delivered(http, (streams) => events.unread(streams));
    },
    stop: async () => {
      resume = () => {};
      for (const { close } of features) close?.();
      sidecar.rollout.stop();
      // Before the connections end: a client that is cut off gives up nothing.
      await Promise.all([rollouts.close(), requestJournals?.close()]);
      await journals?.release();
      await http.stop();
      encoder.close();
      await pool.close();
      await kv.close();
      await history?.close();
      timers.stop();
    },
  };
}

/** What an earlier process kept. @throws AppError invalid_config: a journal is of something else. */
function savedIn(journals: RunJournals | null): {
  readonly requests: readonly SavedRequest[];
  readonly rollouts: readonly SavedRollout[];
} {
  const requests: SavedRequest[] = [];
  const rollouts: SavedRollout[] = [];
  for (const run of journals?.takeSaved() ?? []) {
    const request = savedRequest(run);
    if (request === null) rollouts.push(savedRollout(run));
    else requests.push(request);
  }
  return { requests, rollouts };
}

/** The weights that were current when an earlier process ended, as a journal names them. */
function heldIn(journals: RunJournals | null): (HeldWeights & { readonly run: { epochs: [] } })[] {
  const held = journals?.weights.held ?? null;
  return held === null ? [] : [{ ...held, run: { epochs: [] } }];
}

/**
 * Rollouts of an earlier process go on as soon as the engines serve, before anybody can see that they do. false: they do
 * not yet.
 */
function resumed(
  rollouts: KnownRollouts,
  parts: { pool: WorkerPool; sidecar: Sidecar; events: ServeEvents },
): boolean {
  const { pool, sidecar, events } = parts;
  const count = rollouts.waiting;
  if (count === 0) return true;
  if (!pool.hasStarted || sidecar.rollout.workers.length === 0) return false;
  const weights = sidecar.rollout.workers.flatMap((worker) => worker.weights ?? []);
  rollouts.resume(weights, events.failed);
  events.resumed(count);
  return true;
}

function sidecarOf(
  options: ServeOptions,
  parts: {
    kv: EmbeddedKvPool;
    history: PromptHistory | null;
    timers: Timers;
    epoch: WeightEpoch;
  },
): Sidecar {
  const { kv, history, timers, epoch } = parts;
  return new Sidecar({
    rollout: {
      policy: options.policy,
      draft: options.draft,
      chunkTokens: options.chunkTokens,
      epoch,
      pool: kv,
      clock: wallClock,
      core: loadCore(),
      later: timers.afterwards,
      ...(history && { lengthPrior: history.prior }),
    },
    vocabularySize: options.model.text.vocabularySize,
    limits: options.limits,
    random: randomWord,
    failed: options.events.failed,
  });
}
