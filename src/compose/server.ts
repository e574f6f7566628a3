// A sidecar behind an HTTP port, and the life of a serving process: it listens first, then finds out what the model is and
// opens the engines, serves until it is asked to stop, and drains.

import { assert } from "../core/base/assert.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { DRAFT_SERVER_LIMITS } from "../core/draft/service/limits.ts";
import type { WorkerSource } from "../fleet/engines.ts";
import { codeOf } from "../host/system.ts";
import { delivered } from "../server/delivery.ts";
import { type HttpOptions, type HttpServer, type Served, serveHttp } from "../server/http.ts";
import { openApiRoute } from "../server/openapi.ts";
import { starting } from "../server/starting.ts";
import { type EngineAddress, WorkerRegistry } from "../server/worker-registry.ts";
import type { EngineSources } from "./engines.ts";
import { routeTable } from "./features.ts";
import type { ModelSide, ModelWait } from "./model.ts";
import { type Ending, OperatorFeed, type OperatorLog } from "./operator-log.ts";
import type { BindOptions, RunningServer, RunningSidecar } from "./options.ts";
import { openSidecar } from "./sidecar.ts";

const BODY_BYTES_MAX = 32 * 1024 * 1024;

/** A server whose port is open but that serves nothing yet; /health gives the reason. */
export class BoundServer {
  /** Workers that clients name. */
  readonly registry: WorkerRegistry;
  /** The reason that /health answers with until serving begins. */
  waitsFor = "the model";
  readonly #options: BindOptions;
  readonly #feed: OperatorFeed;
  readonly #http: HttpServer;

  /** Opens the port. @throws AppError: the address is in use. */
  constructor(options: BindOptions) {
    const { version, joining, events } = options;
    this.#options = options;
    this.registry = new WorkerRegistry(joining);
    this.#feed = new OperatorFeed(events);
    const { answered, failed } = this.#feed.log;
    const waitsFor = () => this.waitsFor;
    const served = starting({ version, waitsFor, routes: this.registry.routes() });
    this.#http = listening(options, { ...served, answered, failed });
  }

  get url(): URL {
    return this.#http.url;
  }

  /** Starts serving, and begins to open the workers. Call it once. @throws AppError: the core cannot be loaded. */
  async serve(model: ModelSide, sources: readonly WorkerSource[]): Promise<RunningServer> {
    const front = { registry: this.registry, bodyWait: () => this.#http.bodyWait() };
    const options = { ...this.#options, model, sources };
    const composed = await openSidecar(options, { feed: this.#feed, front });
    return serveOver(this.#http, composed, this.#options);
  }

  /** Ends every connection. */
  stop(): Promise<void> {
    return this.#http.stop();
  }
}

/** Starts the HTTP server. @throws AppError invalid_config: the address cannot be used. */
export function listening(
  where: Pick<BindOptions, "host" | "port" | "apiToken" | "allowOrigins">,
  served: Served & Pick<HttpOptions, "answered" | "failed">,
): HttpServer {
  const { host, port, apiToken, allowOrigins = [] } = where;
  try {
    return serveHttp({
      ...served,
      host,
      port,
      apiToken,
      allowOrigins,
      bodyBytesMax: BODY_BYTES_MAX,
      frameBytesMax: DRAFT_SERVER_LIMITS.frameBytesMax,
    });
  } catch (cause) {
    if (cause instanceof AppError) throw cause;
    const isTaken = codeOf(cause) === "EADDRINUSE";
    const reason = isTaken
      ? `the port is in use by another process; --port 0 takes a free one`
      : errorText(cause);
    throw new AppError("invalid_config", `${host}:${port}: ${reason}`, { cause });
  }
}

/** Puts the sidecar behind a port that is open already. */
export function serveOver(
  http: HttpServer,
  composed: RunningSidecar,
  { version, events }: Pick<BindOptions, "version" | "events">,
): RunningServer {
  const { routes, sockets } = composed.served;
  const listed = new Set(routeTable().map(({ method, path }) => `${method} ${path}`));
  for (const { method, path } of routes) {
    assert(listed.has(`${method} ${path}`), `${method} ${path} is served, and not in routeTable()`);
  }
  http.serve({ routes: [...routes, openApiRoute(routes, version)], sockets });
  return {
    ...composed,
    url: http.url,
    streams: () => http.streams(),
    drain: async () => {
      await composed.drain();
      await delivered(http, (streams) => events.unread(streams));
    },
    stop: () => composed.stop(() => http.stop()),
  };
}

export interface ServingOptions {
  readonly engines: EngineSources;
  readonly options: Omit<BindOptions, "joining" | "events">;
  readonly events: OperatorLog;
  /** Requests to stop: the first drains, the second ends everything. */
  readonly stopping: { readonly first: Promise<void>; readonly second: Promise<void> };
  /** Rejects when a bug has stopped the rollout. */
  readonly broken: Promise<never>;
  readonly drainS: number;
}

/** Serves to the end. @throws AppError: the address is in use, or no retry could open an engine; and what `broken` rejects with. */
export async function serveUntilStopped(serving: ServingOptions): Promise<Ending> {
  const { engines, options, events, broken, drainS } = serving;
  const joining = {
    sourceOf: (engine: EngineAddress) => engines.sourceOf(engine),
    hasFixed: engines.hasFixed,
    drainMs: drainS * 1000,
  };
  const bound = new BoundServer({ ...options, ...engines.pool, joining, events });
  events.listening(bound.url);
  try {
    const model = await modelOf(bound, serving);
    if (model === null) return "interrupted";
    try {
      const running = await bound.serve(model, engines.sources(model));
      const opened = running.opened.then(() => events.ready(bound.url));
      const failing = opened.then(() => new Promise<never>(() => {}));
      try {
        const stopped = untilStopped(running, serving);
        return await Promise.race([stopped, failing, broken]);
      } finally {
        await running.stop();
      }
    } finally {
      model.llama?.close();
    }
  } finally {
    await bound.stop();
  }
}

const NO_WORKER = 'no worker: POST /workers {"url": "http://HOST:PORT"} adds one';

/** The engines' model; null: serving was stopped before it was known. */
async function modelOf(
  bound: BoundServer,
  { engines, events, stopping }: ServingOptions,
): Promise<ModelSide | null> {
  const stopped = new AbortController();
  const { registry } = bound;
  if (!engines.hasFixed) {
    bound.waitsFor = NO_WORKER;
    events.ready(bound.url);
    const came = await Promise.race([registry.first.then(() => true), stopping.first]);
    if (came !== true) return null;
    bound.waitsFor = "the model";
  }
  const wait: ModelWait = {
    tried: (problems) => {
      for (const problem of problems) events.modelUnknown(problem);
      const reason = `no server has reported its model: ${problems.join("; ")}`;
      bound.waitsFor = problems.length === 0 ? NO_WORKER : reason;
      events.ready(bound.url);
    },
    signal: stopped.signal,
  };
  const model = engines.model(wait, () => registry.early);
  const first = await Promise.race([model, stopping.first.then(() => "stopped" as const)]);
  if (first !== "stopped") return first;
  events.stopping("waiting for the model");
  stopped.abort(new AppError("interrupted", "stopped by a signal"));
  const late = await model.catch(() => null);
  late?.llama?.close();
  return null;
}

async function untilStopped(
  running: RunningServer,
  { stopping, events, drainS }: ServingOptions,
): Promise<Ending> {
  await stopping.first;
  if (!running.hasStarted()) {
    events.stopping("opening workers");
    return "interrupted";
  }
  events.draining(running.sidecar.rollout.unfinished, drainS);
  const timeUp = new Promise<"time_up">((resolve) => {
    setTimeout(() => resolve("time_up"), drainS * 1000).unref();
  });
  const ending = await Promise.race([
    running.drain().then(
      () => "drained" as const,
      (error: unknown) => ({ error }),
    ),
    stopping.second.then(() => "second_signal" as const),
    timeUp,
  ]);
  events.stopped(ending, running.sidecar.rollout.unfinished, running.streams());
  return ending;
}
