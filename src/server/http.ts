// The HTTP server: who may ask (origin, host, tokens), errors, and the sockets. It knows nothing of what the
// routes do.

import { hostname } from "node:os";
import { AppError, errorText } from "../core/base/errors.ts";
import { CLOSE } from "../proto/close-codes.ts";
import { Access } from "./access.ts";
import type { BodyOptions } from "./body.ts";
import { BodyBudget } from "./body-budget.ts";
import { BodyReader } from "./body-reader.ts";
import { FetchExchange } from "./fetch-exchange.ts";
import { CLIENT_GONE, errorResponse, statusOf } from "./http-errors.ts";
import { type OpenStream, OpenStreams } from "./open-streams.ts";
import { requestIdOf } from "./request-id.ts";
import { type Route, reasonIn } from "./route.ts";
import { Router } from "./router.ts";
import { authorize, givenToken } from "./tokens.ts";

/** In the meaning of Bun's ServerWebSocket. */
export interface Socket {
  /** -1: it waits in a buffer; 0: dropped; else bytes sent. */
  send(data: string | Uint8Array): number;
  readonly bufferedBytes: number;
  close(code: number, reason: string): void;
}

export interface SocketService {
  /** `query`: of the URL that was asked for. */
  open(socket: Socket, query: URLSearchParams): void;
  message(socket: Socket, data: string | Uint8Array): void;
  close(socket: Socket): void;
  /** What waited in the buffer has gone. */
  drain(socket: Socket): void;
}

/** What is served. */
export interface Served {
  readonly routes: readonly Route[];
  /** By path. */
  readonly sockets: Readonly<Record<string, SocketService>>;
  /** Answers whatever no route is for. Default: 404. */
  readonly otherwise?: Route["handle"];
}

export interface HttpOptions extends Served {
  /** For every route that is not open; null: none is asked for, of anyone. */
  readonly apiToken: string | null;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  /** Names and origins beyond the server's own; see AccessOptions. Default: none. */
  readonly allowHosts?: readonly string[];
  readonly allowOrigins?: readonly string[];
  readonly bodyBytesMax: number;
  readonly frameBytesMax: number;
  /** Called for every answer. */
  readonly answered: (entry: AccessEntry) => void;
  /** Called with an error that is not the client's. */
  readonly failed: (error: unknown) => void;
}

export interface AccessEntry {
  /** Of the request; in the answer's header too. */
  readonly id: string;
  readonly method: string;
  readonly path: string;
  readonly status: number;
  /** Until the answer began. */
  readonly ms: number;
  /** What an answer of 400 or more says; null: it says nothing. */
  readonly reason: string | null;
}

export interface HttpServer {
  readonly url: URL;
  /** Serves this from now on in place of what it served before. */
  serve(served: Served): void;
  /** Streams that are still being written. */
  streams(): OpenStream[];
  /** Takes no more connections; resolves when every answer has gone out and every socket is closed. */
  finish(): Promise<void>;
  /** Ends every connection. */
  stop(): Promise<void>;
}

interface SocketData {
  readonly service: SocketService;
  readonly query: URLSearchParams;
  wrapped: Socket | null;
}

/** Longer than clients keep idle connections (Node 5 s, Go 90 s). */
const IDLE_S = 120;
/** Bodies of the largest size that are read at the same time. */
const BODIES_READ_MAX = 4;
const BODY_MS_MAX = 60_000;
const BODY_WAIT_MS_MAX = 5_000;

export function serveHttp(options: HttpOptions): HttpServer {
  let router = new Router(options.routes, options.otherwise);
  let { sockets } = options;
  const access = new Access({
    boundHost: options.host,
    machineName: hostname(),
    hasToken: options.apiToken !== null,
    allowHosts: options.allowHosts ?? [],
    allowOrigins: options.allowOrigins ?? [],
  });
  const body = bodyOptionsOf(options);
  const reader = new BodyReader();
  const streams = new OpenStreams(() => performance.now());
  const server = Bun.serve<SocketData>({
    hostname: options.host,
    port: options.port,
    // The limit is `readBody`'s, which says so in the answer; Bun would only cut the connection.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    // Of connections without a request. Bun gives a request's head some 12 s, whatever is set.
    idleTimeout: IDLE_S,
    fetch: async (request, bun) => {
      const startMs = performance.now();
      // Responses take as long as they take; a quiet stream is not a dead one.
      bun.timeout(request, 0);
      const id = requestIdOf(request.headers);
      const url = urlOf(request);
      const { method } = request;
      const report = (status: number, reason: string | null) => {
        const ms = performance.now() - startMs;
        options.answered({ id, method, path: url.pathname, status, ms, reason });
      };
      const origin = request.headers.get("origin");
      const shared = origin === null ? null : access.sharing(origin);
      const own = { ...shared, "x-request-id": id, ...(closes(request) && CLOSING) };
      const exchange = new FetchExchange(request, {
        id,
        url,
        body,
        reader,
        streams: () => {
          const ip = bun.requestIP(request);
          const client = ip === null ? null : `${ip.address}:${ip.port}`;
          const hold = streams.add({ id, method, path: url.pathname, client });
          const ended = () => {
            hold.ended();
            bun.timeout(request, IDLE_S);
          };
          return { ...hold, ended };
        },
      });
      const answer = async (): Promise<Response | null> => {
        access.check({ method, path: url.pathname, headers: request.headers });
        // A browser asks so before it sends what a form cannot; it has no token for that.
        if (shared !== null && method === "OPTIONS") return new Response(null, { status: 204 });
        const permit = () => authorize(givenToken(request.headers, url), options.apiToken);
        const service = sockets[url.pathname];
        if (service === undefined) {
          return await router.handle(exchange, (route) => {
            if (route?.right !== "open") permit();
          });
        }
        permit();
        const data: SocketData = { service, query: url.searchParams, wrapped: null };
        if (bun.upgrade(request, { data })) return null;
        throw new AppError("upgrade_required", `${url.pathname} is a WebSocket`);
      };
      try {
        const response = await answer();
        report(response?.status ?? 101, response === null ? null : await reasonIn(response));
        if (response === null) return undefined;
        if (!isStream(response)) bun.timeout(request, IDLE_S);
        return withHeaders(response, own);
      } catch (error) {
        if (request.signal.aborted) {
          report(CLIENT_GONE, "the client disconnected");
          return new Response(null, { status: CLIENT_GONE });
        }
        if (!(error instanceof AppError)) options.failed(error);
        report(statusOf(error), errorText(error));
        bun.timeout(request, IDLE_S);
        return withHeaders(errorResponse(error), { ...own, ...(exchange.isUnread && CLOSING) });
      }
    },
    websocket: socketsOf(options),
  });
  return {
    url: server.url,
    serve: (served) => {
      router = new Router(served.routes, served.otherwise);
      sockets = served.sockets;
    },
    streams: () => streams.list(),
    finish: async () => {
      await server.stop();
      reader.close();
    },
    stop: async () => {
      reader.close();
      await server.stop(true);
    },
  };
}

function bodyOptionsOf(options: HttpOptions): BodyOptions {
  const { bodyBytesMax } = options;
  const after = (ms: number, act: () => void) => {
    const timer = setTimeout(act, ms);
    return () => clearTimeout(timer);
  };
  const bytesMax = BODIES_READ_MAX * bodyBytesMax;
  const budget = new BodyBudget({ bytesMax, waitMsMax: BODY_WAIT_MS_MAX, after });
  return { bytesMax: bodyBytesMax, msMax: BODY_MS_MAX, budget, after };
}

/** Streams may say nothing for as long as an engine does. */
function isStream(response: Response): boolean {
  const type = response.headers.get("content-type") ?? "";
  return type.startsWith("text/event-stream") || type.startsWith("application/x-ndjson");
}

/** Hands each socket to the service that it was opened for. What a service throws ends this one connection. */
function socketsOf({ frameBytesMax, failed }: HttpOptions): Bun.WebSocketHandler<SocketData> {
  const contained = (ws: Bun.ServerWebSocket<SocketData>, act: (socket: Socket) => void) => {
    const { wrapped } = ws.data;
    if (wrapped === null) return;
    try {
      act(wrapped);
    } catch (error) {
      failed(error);
      ws.close(CLOSE.internal, "internal_error");
    }
  };
  return {
    maxPayloadLength: frameBytesMax,
    idleTimeout: 120,
    sendPings: true,
    open: (ws) => {
      ws.data.wrapped = {
        send: (data) => ws.send(data),
        get bufferedBytes() {
          return ws.getBufferedAmount();
        },
        close: (code, reason) => ws.close(code, reason),
      };
      contained(ws, (socket) => ws.data.service.open(socket, ws.data.query));
    },
    message: (ws, data) => contained(ws, (socket) => ws.data.service.message(socket, data)),
    close: (ws) => contained(ws, (socket) => ws.data.service.close(socket)),
    drain: (ws) => contained(ws, (socket) => ws.data.service.drain(socket)),
  };
}

const CLOSING = { connection: "close" };

/**
 * The client wants the connection closed. Bun closes it, but announces that only if the answer says so; a client that
 * keeps connections, such as SkyRL's, would else send its next request on one that is being closed.
 */
function closes(request: Request): boolean {
  const options = request.headers.get("connection")?.toLowerCase().split(",") ?? [];
  return options.some((option) => option.trim() === "close");
}

/** Of a Host that cannot stand in a URL only the path is left. A base URL that ends with a slash doubles it. */
function urlOf(request: Request): URL {
  const path = request.url.replace(/^\w+:\/\/[^/]*/, "");
  const url = URL.canParse(request.url) ? new URL(request.url) : new URL(path, "http://invalid");
  if (url.pathname.includes("//")) url.pathname = url.pathname.replace(/\/{2,}/g, "/");
  return url;
}

function withHeaders(response: Response, headers: Readonly<Record<string, string>>) {
  for (const [name, value] of Object.entries(headers)) response.headers.set(name, value);
  return response;
}
