// A sidecar behind an HTTP port: it listens, opens what it serves from, serves, and ends in order.

import { assert } from "../core/base/assert.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { DRAFT_SERVER_LIMITS } from "../core/draft/service/limits.ts";
import { codeOf } from "../host/system.ts";
import { delivered } from "../server/delivery.ts";
import { type HttpOptions, type HttpServer, type Served, serveHttp } from "../server/http.ts";
import { openApiRoute } from "../server/openapi.ts";
import { starting } from "../server/starting.ts";
import { WorkerRegistry } from "../server/worker-registry.ts";
import { routeTable } from "./features.ts";
import { OperatorFeed } from "./operator-log.ts";
import type { BindOptions, BoundServer, RunningServer } from "./options.ts";
import { type ComposedSidecar, openSidecar } from "./sidecar.ts";

const BODY_BYTES_MAX = 32 * 1024 * 1024;

/** Opens the port. @throws AppError: the address is in use. */
export function bindServer(options: BindOptions): BoundServer {
  let waitsFor = "the model";
  const registry = new WorkerRegistry(options.joining);
  const feed = new OperatorFeed(options.events);
  const { answered, failed } = feed.log;
  const http = listening(options, {
    ...starting({ version: options.version, waitsFor: () => waitsFor, routes: registry.routes() }),
    answered,
    failed,
  });
  return {
    url: http.url,
    registry,
    waitFor: (what) => {
      waitsFor = what;
    },
    serve: async (model, sources) => {
      const front = { registry, bodyWait: () => http.bodyWait() };
      const composed = await openSidecar({ ...options, model, sources }, { feed, front });
      return serveOver(http, composed, options);
    },
    stop: () => http.stop(),
  };
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
  composed: ComposedSidecar,
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
