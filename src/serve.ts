// The life of a server: it listens, opens what it serves from, runs the loop over its features, and ends in order.

import { join } from "node:path";
import { openPool } from "./app.ts";
import { assert } from "./core/base/assert.ts";
import { AppError, errorText } from "./core/base/errors.ts";
import { DRAFT_SERVER_LIMITS } from "./core/draft/service/limits.ts";
import { featuresOf, routeTable } from "./features.ts";
import { historyPlace, openRunFiles } from "./host/journal-file.ts";
import type { BindOptions, BoundServer, RunningSidecar, ServeOptions } from "./serve-options.ts";
import { type Feature, type Opened, partsOf } from "./serve-parts.ts";
import { delivered } from "./server/delivery.ts";
import { PromptHistory } from "./server/history/prompt-history.ts";
import { type HttpOptions, type HttpServer, type Served, serveHttp } from "./server/http.ts";
import { openApiRoute } from "./server/openapi.ts";
import { starting } from "./server/starting.ts";
import { WorkerRegistry, type WorkerRegistryOptions } from "./server/worker-registry.ts";
import type { ModelSide } from "./sources.ts";

const NONE_JOINS: WorkerRegistryOptions = {
  sourceOf: () => {
    throw new AppError("forbidden", "this server takes no workers after its start");
  },
  hasFixed: true,
  drainMs: 0,
};
const BODY_BYTES_MAX = 32 * 1024 * 1024;

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
  const features: Feature[] = [];
  const registry = new WorkerRegistry(options.joining ?? NONE_JOINS);
  const http = listening(options, {
    ...starting({ version: options.version, waitsFor: () => waitsFor, routes: registry.routes() }),
    answered: (entry) => {
      if (features.length === 0) options.events.answered(entry);
      for (const { answered } of features) answered?.(entry);
    },
    failed: options.events.failed,
  });
  return {
    url: http.url,
    registry,
    waitFor: (what) => {
      waitsFor = what;
    },
    serve: async (model, sources) => {
      const { poolMemoryBytes, poolDiskBytes = 0, poolDir = null, journal = null } = options;
      const { journalFailed } = options.events;
      const journals = journal === null ? null : openRunFiles(journal, journalFailed);
      try {
        const history = openHistory(options, model);
        const kv = await openPool({ poolMemoryBytes, poolDiskBytes, poolDir });
        const opened = { http, kv, registry, history, journals };
        return serveWith({ ...options, model, sources }, opened, features);
      } catch (error) {
        await journals?.release();
        throw error;
      }
    },
    stop: () => http.stop(),
  };
}

/** @throws AppError invalid_config: the file cannot be used. */
function openHistory(
  { historyBytes = 0, journal = null, events }: BindOptions,
  model: ModelSide,
): PromptHistory | null {
  if (historyBytes === 0) return null;
  const history = new PromptHistory({ limitBytes: historyBytes, model: model.names[0] });
  if (journal !== null) history.keepIn(historyPlace(join(journal, "history"), events.failed));
  return history;
}

/** @throws AppError invalid_config: the address cannot be had. */
export function listening(
  where: Pick<BindOptions, "host" | "port" | "apiToken" | "allowOrigins">,
  served: Served & Pick<HttpOptions, "answered" | "failed">,
): HttpServer {
  const { host, port, apiToken, allowOrigins = [] } = where;
  try {
    return serveHttp({
      ...{ ...served, host, port, apiToken, allowOrigins },
      bodyBytesMax: BODY_BYTES_MAX,
      frameBytesMax: DRAFT_SERVER_LIMITS.frameBytesMax,
    });
  } catch (cause) {
    if (cause instanceof AppError) throw cause;
    const isTaken = String(Reflect.get(Object(cause), "code")) === "EADDRINUSE";
    const reason = isTaken
      ? `the port is in use by another process; --port 0 takes a free one`
      : errorText(cause);
    throw new AppError("invalid_config", `${host}:${port}: ${reason}`, { cause });
  }
}

/** `features` are filled. @throws AppError: the core cannot be loaded. */
export function serveWith(
  options: ServeOptions,
  opened: Opened,
  features: Feature[],
): RunningSidecar {
  const { http, kv, registry, history, journals } = opened;
  const parts = partsOf(options, opened, features);
  const { sidecar, pool, encoder, timers } = parts;
  features.push(...featuresOf(parts));
  for (const { observer } of features) if (observer !== undefined) sidecar.observe(observer);
  pool.attach(sidecar);
  const routes = features.flatMap((feature) => feature.routes ?? []);
  const listed = new Set(routeTable().map(({ method, path }) => `${method} ${path}`));
  for (const { method, path } of routes) {
    assert(listed.has(`${method} ${path}`), `${method} ${path} is served, and not in routeTable()`);
  }
  http.serve({
    routes: [...routes, openApiRoute(routes, options.version)],
    sockets: Object.assign({}, ...features.map((feature) => feature.sockets)),
  });
  const all = pool.open();
  registry.attach(pool);
  // Callers that await it get the error; an unhandled rejection would end the process.
  all.catch(() => undefined);
  return {
    url: http.url,
    sidecar,
    opened: all,
    get hasStarted() {
      return pool.hasStarted;
    },
    streams: () => http.streams(),
    drain: async () => {
      await sidecar.drain();
      for (const { drained } of features) drained?.();
      await delivered(http, (streams) => options.events.unread(streams));
    },
    stop: async () => {
      for (const { close } of features) close?.();
      sidecar.rollout.stop();
      await Promise.all(features.map(({ stopped }) => stopped?.()));
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
