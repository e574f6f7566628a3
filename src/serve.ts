// The wiring of the sidecar: workers of every kind, the KV pool, the rollout, and the server in front of them.

import { openPool, wallClock } from "./app.ts";
import { AppError, errorText } from "./base/errors.ts";
import { type WeightEpoch, weightEpoch } from "./base/ids.ts";
import type { DraftMode } from "./draft/registry.ts";
import { SAMPLES_MAX } from "./draft/service/limits.ts";
import { DraftServer } from "./draft/service/server.ts";
import { openRunFiles } from "./journal-file.ts";
import type { EmbeddedKvPool } from "./kv/embedded-pool.ts";
import { type KeptLevels, meteredBy, metricsRoute } from "./metered.ts";
import type { Metrics } from "./metrics/metrics.ts";
import type { PolicyName } from "./schedule/policies.ts";
import { describeControl } from "./server/control/describe.ts";
import { LearnedEpochs } from "./server/control/learned-epochs.ts";
import { type ControlEntry, logged } from "./server/control/logged.ts";
import { controlRoutes } from "./server/control/routes.ts";
import { type WeightsNotice, WeightUpdates } from "./server/control/weights.ts";
import { confined, type WeightsRoots } from "./server/control/weights-roots.ts";
import { delivered } from "./server/delivery.ts";
import { DraftSocketService } from "./server/drafts/draft-socket.ts";
import { EngineTelemetry } from "./server/drafts/engine-telemetry.ts";
import { followedResponses } from "./server/drafts/followed-responses.ts";
import { describePlugin, pluginRoutes } from "./server/drafts/routes.ts";
import { type EngineCalls, PoolCalls } from "./server/engine-calls.ts";
import { EngineEncoder } from "./server/engine-encoder.ts";
import { PromptHistory } from "./server/history/prompt-history.ts";
import {
  type AccessEntry,
  type Certificate,
  type HttpOptions,
  type HttpServer,
  type Served,
  serveHttp,
} from "./server/http.ts";
import { type IterationSummary, Iterations } from "./server/iterations.ts";
import { LIVE_DESCRIPTIONS, liveRoutes } from "./server/live/routes.ts";
import type { ServingState } from "./server/live/serving-state.ts";
import { LiveView } from "./server/live/view.ts";
import type { OpenStream } from "./server/open-streams.ts";
import { dataPlane, describeDataPlane } from "./server/openai/data-plane.ts";
import { RequestJournals, savedRequest } from "./server/openai/request-journals.ts";
import { openApiRoute, type RouteDescription } from "./server/openapi.ts";
import { pageRoutes } from "./server/page/routes.ts";
import { describeRollouts } from "./server/rollouts/describe.ts";
import { type HeldWeights, lastWeights, savedRollout } from "./server/rollouts/journal.ts";
import type { KnownRollouts } from "./server/rollouts/known.ts";
import { rolloutSide } from "./server/rollouts/routes.ts";
import type { Route } from "./server/route.ts";
import { Sidecar, type SidecarLimits } from "./server/sidecar.ts";
import { starting } from "./server/starting.ts";
import { StreamService } from "./server/stream/service.ts";
import type { MixedPrecision } from "./server/weights-agreement.ts";
import { type Member, WorkerPool, type WorkerSource } from "./server/worker-pool.ts";
import {
  WORKER_ROUTES,
  WorkerRegistry,
  type WorkerRegistryOptions,
} from "./server/worker-registry.ts";
import type { ModelSide } from "./sources.ts";
import { type EncoderLimits, ThreadedEncoder } from "./text/encoder.ts";
import type { Encoder } from "./text/text.ts";
import { timersOf } from "./timers.ts";
import { tracedBy } from "./traced.ts";
import type { TracingSettings } from "./tracing/settings.ts";
import { loadCore } from "./wasm/load.ts";

export interface ServeOptions {
  readonly host: string;
  readonly port: number;
  readonly apiToken: string | null;
  /** For routes that only read; null, the default: there is none. */
  readonly readToken?: string | null;
  /** Default: plain HTTP. */
  readonly tls?: Certificate | null;
  /** Folders that weights and adapters may be loaded from; null, the default: any. */
  readonly weightsRoots?: WeightsRoots;
  /** What the HTTP server takes beyond that. */
  readonly edge?: EdgeOptions;
  readonly bodyBytesMax: number;
  readonly limits: SidecarLimits;
  readonly policy: PolicyName;
  readonly draft: DraftMode;
  /** null: chosen by what the end of a chunk costs. */
  readonly chunkTokens: number | null;
  readonly poolMemoryBytes: number;
  /** As PoolOptions; default: no SSD tier. */
  readonly poolDiskBytes?: number;
  readonly poolDir?: string | null;
  /** Default: refuse. */
  readonly mixedPrecision?: MixedPrecision;
  /** Workers from the start. */
  readonly sources: readonly WorkerSource[];
  /** How workers come later, by POST /workers. Default: none does. */
  readonly joining?: WorkerRegistryOptions;
  /** Of responses of earlier weight epochs, from which engines with the plugin draft; 0, the default: none are kept. */
  readonly historyBytes?: number;
  /** Keeps them over a restart; null, the default: nothing does. */
  readonly historyFile?: string | null;
  /** Of the last iterations; null, the default: they are kept in memory. */
  readonly iterationsFile?: string | null;
  /** Directory that keeps /v1/rollouts over the end of the process; null, the default: nothing does. */
  readonly journal?: string | null;
  readonly model: ModelSide;
  /** Of texts that clients send. Default: as ENCODER_LIMITS. */
  readonly encoder?: Partial<EncoderLimits>;
  /** /health is 503 until this many workers have been ready at the same time. Default: 1. */
  readonly workersMin?: number;
  /** Milliseconds for which a request continues after its client disconnected. */
  readonly retryGraceMs: number;
  /** Milliseconds for an engine to answer a control request, and between calls of an open weight update. */
  readonly weightsTimeoutMs: number;
  /** Methods of `/collective_rpc`, besides those that are known, that leave the weights alone. */
  readonly harmlessRpc: readonly string[];
  /** Extra arguments of requests that keep nothing from token to token. Default: none. */
  readonly statelessArgs?: readonly string[];
  readonly version: string;
  /** Where traces go; null, the default: nowhere. */
  readonly tracing?: TracingSettings | null;
  readonly events: ServeEvents;
}

export type EdgeOptions = Pick<
  HttpOptions,
  "allowHosts" | "allowOrigins" | "bodiesBytesMax" | "bodyMsMax"
>;

/** Events for the operator's log. */
export interface ServeEvents {
  workerChanged(member: Member): void;
  weightsChanged(epoch: number, version: string): void;
  weightsNotice(notice: WeightsNotice): void;
  /** An engine's plugin reports that its sampler verifies drafts wrongly: it gets none. */
  notLossless(engine: string): void;
  /** A request that made workers die was ended. `reason` names it and them. */
  quarantined(reason: string): void;
  answered(entry: AccessEntry): void;
  /** A control call has ended. */
  controlled(entry: ControlEntry): void;
  /** A request was ended with an error that an engine gave, or that an engine is to blame for. */
  refused(entry: RefusedEntry): void;
  iterationEnded(summary: IterationSummary): void;
  /** Nothing is generated, and why; or it is again. Also every minute while requests wait for it. */
  stateChanged(state: ServingState & { waiting: number; seconds: number }): void;
  /** Rollouts of an earlier process have gone on. */
  resumed(rollouts: number): void;
  /** A journal is not written any more; its rollout goes on without it. */
  journalFailed(error: unknown): void;
  /** All responses are generated, but these clients have not read theirs: the server stops when they have, or stall. */
  unread(streams: readonly OpenStream[]): void;
  /** The collector of traces takes none any more, and why; null: it does again. */
  tracesChanged(problem: string | null): void;
  failed(error: unknown): void;
  /** A bug stopped the rollout: nothing can be served any more. */
  broken(error: unknown): void;
}

export interface RefusedEntry {
  /** As the rollout numbers requests. */
  readonly request: number;
  readonly worker: string | null;
  /** 0: not given. */
  readonly status: number;
  readonly reason: string;
}

/** The files of journals, and what frees their folder. */
type RunJournals = ReturnType<typeof openRunFiles>;

export type BindOptions = Omit<ServeOptions, "model" | "sources">;

/** The port is open; /health gives the reasons for the wait. */
export interface BoundServer {
  readonly url: URL;
  /** The answer of /health until serving begins. */
  waitFor(what: string): void;
  /** Workers that clients name. */
  readonly registry: WorkerRegistry;
  /** Once. The workers are opened from now on. @throws AppError: the core cannot be loaded. */
  serve(model: ModelSide, sources: readonly WorkerSource[]): Promise<RunningSidecar>;
  /** Ends every connection. */
  stop(): Promise<void>;
}

export interface RunningSidecar {
  readonly url: URL;
  readonly sidecar: Sidecar;
  /** Each worker has been tried once. @throws AppError: no further try would open one. */
  readonly opened: Promise<void>;
  /** As many workers as are wanted have been ready at the same time. */
  readonly hasStarted: boolean;
  /** Streams that are being written. */
  streams(): OpenStream[];
  /**
   * Takes nothing new; resolves when all that was in flight has ended and every client has its answer.
   * @throws AppError deadline_exceeded: clients do not take theirs.
   */
  drain(): Promise<void>;
  /** Ends everything at once. */
  stop(): Promise<void>;
}

const DESCRIPTIONS: readonly RouteDescription[] = [
  {
    method: "GET",
    path: "/",
    summary: "A page that shows the rollout",
    request: null,
    streams: false,
    answers: ["text/html"],
  },
  {
    method: "GET",
    path: "/metrics",
    summary: "Prometheus metrics",
    request: null,
    streams: false,
    answers: ["text/plain"],
  },
];

const EPOCH = weightEpoch(0);
const RESUME_LOOK_MS = 50;
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
/** Interval of the sweep for unused draft groups. */
const DRAFT_SWEEP_MS = 1000;
/** Between two looks at the versions that engines report; fenced ones bring no events. */
const VERSION_LOOK_MS = 250;
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
      const running = serveWith({ ...options, model, sources }, parts);
      metrics = running.metrics;
      return running;
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
      readToken: options.readToken ?? null,
      tls: options.tls ?? null,
      bodyBytesMax: options.bodyBytesMax,
      ...options.edge,
      frameBytesMax: FRAME_BYTES_MAX,
      failed: options.events.failed,
    });
  } catch (cause) {
    if (cause instanceof AppError) throw cause;
    const where = `${options.host}:${options.port}`;
    throw new AppError("invalid_config", `${where}: ${errorText(cause)}`, { cause });
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
  const { afterwards, repeatedly } = timersOf(failed);
  const saved = (journals?.saved ?? []).map((run) => savedRequest(run) ?? savedRollout(run));
  const before = lastWeights(saved);
  const pool = new WorkerPool({
    before,
    sources: options.sources,
    later: afterwards,
    mixedPrecision: options.mixedPrecision ?? "refuse",
    controlMsMax: options.weightsTimeoutMs,
    changed: (member) => {
      workersChanged();
      events.workerChanged(member);
    },
    workersMin: options.workersMin ?? 1,
  });
  const sidecar = sidecarOf(options, { kv, history, epoch: before?.epoch ?? EPOCH });
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
  });
  if (before !== null && before.version !== String(before.epoch)) weights.rename(before.version);
  const learned = new LearnedEpochs({
    ...{ sidecar, pool, weights, clock: wallClock, later: afterwards },
    stale: (notice) => events.weightsNotice({ kind: "stale", ...notice }),
  });
  const stopLooking = repeatedly(() => learned.look(), VERSION_LOOK_MS);
  const { text, openTextThread: openThread } = options.model;
  const encoderLimits = { ...ENCODER_LIMITS, ...options.encoder };
  const engines = new PoolCalls({ pool, sidecar, later: afterwards });
  const encoder =
    openThread === null
      ? new EngineEncoder(engines, encoderLimits)
      : new ThreadedEncoder({ text, openThread, limits: encoderLimits });
  const stream = new StreamService({
    sidecar,
    text,
    random: randomWord,
    every: repeatedly,
    failed,
  });
  const drafts = draftsOf(options, sidecar, history);
  const kept: KeptLevels = {
    groups: () => sidecar.kept,
    sessions: () => sidecar.sessionsKept,
  };
  const live = new LiveView({
    ...{ sidecar, pool, weights, clock: wallClock, every: repeatedly, failed },
    nowS: () => Date.now() / 1000,
    iterationsFile: options.iterationsFile ?? null,
    changed: (state) => events.stateChanged(state),
  });
  if (history !== null) kept.history = () => history.kept;
  const { tracing: settings = null, version } = options;
  const traces =
    settings &&
    tracedBy(sidecar, {
      ...{ settings, pool, version, later: afterwards, modelName: options.model.names[0] },
      changed: (problem) => events.tracesChanged(problem),
    });
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
      traces,
    },
  });
  sidecar.observe({
    advanced: (epoch) => events.weightsChanged(epoch, weights.version(epoch)),
    quarantined: ({ response }) => events.quarantined(response.refusal?.message ?? ""),
    finished: (request) => {
      const { refusal } = request.response;
      if (refusal === null) return;
      const worker = pool.members.find(({ workerId }) => workerId === request.workerId);
      events.refused({
        request: request.spec.requestId,
        worker: worker?.source.name ?? null,
        status: refusal.status,
        reason: refusal.message,
      });
    },
    threw: failed,
    broken: (error) => events.broken(error),
  });
  const iterations = new Iterations({
    sidecar,
    clock: wallClock,
    later: afterwards,
    ended: (summary) => {
      live.iterationEnded(summary);
      metrics.iterationEnded(summary);
      events.iterationEnded(summary);
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
    drafts,
    metrics,
    kept,
    journals,
    live,
  });
  http.serve({ routes, sockets: { "/v1/stream": stream, "/v1/draft": drafts.service } });
  const stopResuming = resumed(rollouts, { pool, sidecar, events, repeatedly });
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
      iterations.end();
      stream.end();
      drafts.end();
      await delivered(http, (streams) => events.unread(streams));
    },
    stop: async () => {
      stopLooking();
      stopResuming();
      iterations.end();
      live.close();
      sidecar.rollout.stop();
      drafts.end();
      // Before the connections end: a client that is cut off gives up nothing.
      await Promise.all([rollouts.close(), requestJournals?.close()]);
      journals?.release();
      await http.stop();
      encoder.close();
      await pool.close();
      await kv.close();
      await history?.close();
      await traces?.close();
    },
  };
}

/** Rollouts of an earlier process go on as soon as the engines serve. Returns what gives that up. */
function resumed(
  rollouts: KnownRollouts,
  parts: {
    pool: WorkerPool;
    sidecar: Sidecar;
    events: ServeEvents;
    repeatedly: ReturnType<typeof timersOf>["repeatedly"];
  },
): () => void {
  const { pool, sidecar, events, repeatedly } = parts;
  const count = rollouts.waiting;
  if (count === 0) return () => {};
  const stop = repeatedly(() => {
    if (!pool.hasStarted || sidecar.rollout.workers.length === 0) return;
    stop();
    const weights = sidecar.rollout.workers.flatMap((worker) => worker.weights ?? []);
    rollouts.resume(weights, events.failed);
    events.resumed(count);
  }, RESUME_LOOK_MS);
  return stop;
}

function sidecarOf(
  options: ServeOptions,
  parts: { kv: EmbeddedKvPool; history: PromptHistory | null; epoch: WeightEpoch },
): Sidecar {
  const { kv, history, epoch } = parts;
  const sidecar = new Sidecar({
    rollout: {
      policy: options.policy,
      draft: options.draft,
      chunkTokens: options.chunkTokens,
      epoch,
      pool: kv,
      clock: wallClock,
      core: loadCore(),
      later: timersOf(options.events.failed).afterwards,
      ...(history && { lengthPrior: history.prior }),
    },
    vocabularySize: options.model.text.vocabularySize,
    limits: options.limits,
    random: randomWord,
    failed: options.events.failed,
  });
  sidecar.observe({
    finished: (request) => history?.finished(request),
    advanced: () => history?.advance(),
  });
  return sidecar;
}

/** Every route but that of the document made of them. */
export function describedRoutes(): RouteDescription[] {
  return [
    ...describeControl(),
    ...WORKER_ROUTES,
    ...describeDataPlane(),
    ...describeRollouts(),
    ...describePlugin(),
    ...LIVE_DESCRIPTIONS,
    ...DESCRIPTIONS,
  ];
}

/** Every route, and the document that describes them all. */
function routesOf(
  options: ServeOptions,
  parts: {
    sidecar: Sidecar;
    encoder: Encoder;
    engines: EngineCalls;
    pool: WorkerPool;
    registry: WorkerRegistry;
    weights: WeightUpdates;
    learned: LearnedEpochs;
    drafts: Drafts;
    metrics: Metrics;
    kept: KeptLevels;
    live: LiveView;
    journals: RunJournals | null;
  },
): {
  routes: Route[];
  rollouts: KnownRollouts;
  requestJournals: RequestJournals | null;
} {
  const {
    sidecar,
    encoder,
    engines,
    pool,
    registry,
    weights,
    learned,
    drafts,
    metrics,
    kept,
    live,
  } = parts;
  const { text, names, eosTokenIds } = options.model;
  const { version } = options;
  const after = (ms: number, run: () => void) =>
    timersOf(options.events.failed).afterwards(run, ms);
  const held = (): HeldWeights => {
    const { epoch } = sidecar.rollout;
    return { epoch, version: weights.version(epoch), ...pool.held };
  };
  const graceMs = options.retryGraceMs;
  const requestJournals =
    parts.journals && new RequestJournals({ files: parts.journals, sidecar, held, graceMs, after });
  const plane = dataPlane({
    journals: requestJournals,
    sidecar,
    text,
    encoder,
    modelNames: names,
    adapters: () => weights.adapters,
    ...(options.statelessArgs === undefined ? {} : { statelessArgs: options.statelessArgs }),
    engines,
    hasText: options.model.openTextThread !== null,
    eosTokenIds,
    version: (epoch) => weights.version(epoch),
    expected: (hint) => learned.requested(hint),
    limits: { graceMs },
    failed: options.events.failed,
    after,
  });
  const rollouts = rolloutSide({
    ...{ sidecar, text, encoder, eosTokenIds, clock: wallClock, random: randomWord },
    adapterOf: plane.adapterOf,
    versionOf: (epoch) => weights.version(epoch),
    files: parts.journals && {
      saved: parts.journals.saved.filter((run) => savedRequest(run) === null),
      open: parts.journals.open,
    },
    held: () => pool.held,
    after,
  });
  kept.requests = plane.kept;
  kept.rollouts = rollouts.kept;
  const routes = [
    ...logged(
      confined(
        controlRoutes({
          sidecar,
          pool,
          weights,
          learned,
          modelName: names[0],
          version,
          abortRequests: plane.abort,
          timeoutMs: options.weightsTimeoutMs,
          later: timersOf(options.events.failed).afterwards,
          harmlessRpc: options.harmlessRpc,
        }),
        options.weightsRoots ?? null,
      ),
      (entry) => options.events.controlled(entry),
    ),
    ...logged(registry.routes(), (entry) => options.events.controlled(entry)),
    ...plane.routes,
    ...rollouts.routes,
    ...pageRoutes(),
    ...liveRoutes({ live, sidecar, pool, text }),
    ...pluginRoutes(drafts),
    metricsRoute(metrics),
  ];
  const all = [...routes, openApiRoute(routes, describedRoutes(), version)];
  return { routes: all, rollouts: rollouts.known, requestJournals };
}

interface Drafts {
  readonly server: DraftServer;
  readonly telemetry: EngineTelemetry;
  readonly service: DraftSocketService;
  /** Every connection ends. */
  end(): void;
}

/** The draft service for engines with the plugin: all groups of the sidecar, under its weight epochs. */
function draftsOf(options: ServeOptions, sidecar: Sidecar, history: PromptHistory | null): Drafts {
  const server = new DraftServer({
    clock: wallClock,
    instanceId: randomWord(),
    // Responses to a prompt that comes again and again are all of one group.
    limits: { samplesMax: SAMPLES_MAX },
    leads: true,
    source: followedResponses(sidecar.rollout, history),
    release: options.version,
  });
  const telemetry = new EngineTelemetry({
    clock: wallClock,
    drafts: options.draft !== "off",
    notLossless: options.events.notLossless,
  });
  sidecar.observe({ advanced: (epoch) => server.advance(epoch) });
  const { afterwards, repeatedly } = timersOf(options.events.failed);
  const service = new DraftSocketService({ server, reports: telemetry, later: afterwards });
  const stopSweeping = repeatedly(() => server.sweep(), DRAFT_SWEEP_MS);
  return {
    server,
    telemetry,
    service,
    end: () => {
      stopSweeping();
      service.end();
    },
  };
}

function randomWord(): number {
  return crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
}
