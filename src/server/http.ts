// The HTTP server: routing, the API token, limits on bodies, errors, and the socket of /v1/stream. It knows
// nothing of what the routes do.

import { timingSafeEqual } from "node:crypto";
import { AppError } from "../base/errors.ts";
import { readBody } from "./body.ts";
import { CLIENT_GONE, errorResponse, statusOf } from "./http-errors.ts";
import type { Exchange, Route } from "./route.ts";

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

export interface HttpOptions {
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly routes: readonly Route[];
  /** By path. */
  readonly sockets: Readonly<Record<string, SocketService>>;
  /** null: nobody is asked for one. */
  readonly apiToken: string | null;
  readonly bodyBytesMax: number;
  readonly frameBytesMax: number;
  /** Told of every answer. */
  readonly answered: (entry: AccessEntry) => void;
  /** Told of an error that is not the client's. */
  readonly failed: (error: unknown) => void;
}

export interface AccessEntry {
  readonly method: string;
  readonly path: string;
  readonly status: number;
  /** Until the answer began. */
  readonly ms: number;
}

export interface HttpServer {
  readonly url: URL;
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

/** Answered without a token: load balancers ask these. */
const OPEN_PATHS = new Set(["/health", "/ping"]);

export function serveHttp(options: HttpOptions): HttpServer {
  const router = new Router(options.routes);
  const server = Bun.serve<SocketData>({
    hostname: options.host,
    port: options.port,
    // The limit is `readBody`'s, which says so in the answer; Bun would only cut the connection.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    // Responses take as long as they take; a quiet stream is not a dead one.
    idleTimeout: 0,
    fetch: async (request, bun) => {
      const startMs = performance.now();
      const url = new URL(request.url);
      // A base URL that ends with a slash gives paths that begin with two.
      if (url.pathname.includes("//")) url.pathname = url.pathname.replace(/\/{2,}/g, "/");
      const { method } = request;
      const told = (status: number) => {
        options.answered({ method, path: url.pathname, status, ms: performance.now() - startMs });
      };
      try {
        authorize(request, url, options.apiToken);
        const service = options.sockets[url.pathname];
        if (service !== undefined) {
          const data: SocketData = { service, query: url.searchParams, wrapped: null };
          if (bun.upgrade(request, { data })) {
            told(101);
            return undefined;
          }
          throw new AppError("upgrade_required", `${url.pathname} is a WebSocket`);
        }
        const response = await router.handle(new FetchExchange(request, url, options.bodyBytesMax));
        told(response.status);
        return response;
      } catch (error) {
        if (request.signal.aborted) {
          told(CLIENT_GONE);
          return new Response(null, { status: CLIENT_GONE });
        }
        const status = statusOf(error);
        if (!(error instanceof AppError)) options.failed(error);
        told(status);
        return errorResponse(error);
      }
    },
    websocket: socketsOf(options.frameBytesMax),
  });
  return { url: server.url, finish: () => server.stop(), stop: () => server.stop(true) };
}

/** Hands each socket to the service that it was opened for. */
function socketsOf(frameBytesMax: number): Bun.WebSocketHandler<SocketData> {
  return {
    maxPayloadLength: frameBytesMax,
    idleTimeout: 120,
    sendPings: true,
    open: (ws) => {
      const socket: Socket = {
        send: (data) => ws.send(data),
        get bufferedBytes() {
          return ws.getBufferedAmount();
        },
        close: (code, reason) => ws.close(code, reason),
      };
      ws.data.wrapped = socket;
      ws.data.service.open(socket, ws.data.query);
    },
    message: (ws, data) => {
      if (ws.data.wrapped !== null) ws.data.service.message(ws.data.wrapped, data);
    },
    close: (ws) => {
      if (ws.data.wrapped !== null) ws.data.service.close(ws.data.wrapped);
    },
    drain: (ws) => {
      if (ws.data.wrapped !== null) ws.data.service.drain(ws.data.wrapped);
    },
  };
}

/** Browsers cannot set headers on a socket, so the token may stand in the query as well. */
function authorize(request: Request, url: URL, token: string | null): void {
  if (token === null || OPEN_PATHS.has(url.pathname)) return;
  const given =
    request.headers.get("authorization")?.replace(/^Bearer /i, "") ?? url.searchParams.get("token");
  if (given === null || given === undefined || !isSame(given, token)) {
    throw new AppError(
      "unauthorized",
      "the API token is missing or wrong (Authorization: Bearer ...)",
    );
  }
}

function isSame(a: string, b: string): boolean {
  const left = Buffer.from(a);
  const right = Buffer.from(b);
  return left.length === right.length && timingSafeEqual(left, right);
}

interface Pattern {
  readonly parts: readonly string[];
  readonly route: Route;
}

export class Router {
  readonly #exact = new Map<string, Route[]>();
  readonly #patterns: Pattern[] = [];

  constructor(routes: readonly Route[]) {
    for (const route of routes) {
      if (route.path.includes("/:")) {
        this.#patterns.push({ parts: route.path.split("/"), route });
      } else {
        const there = this.#exact.get(route.path);
        if (there === undefined) this.#exact.set(route.path, [route]);
        else there.push(route);
      }
    }
  }

  /** @throws AppError not_found, and what the route throws. */
  async handle(exchange: Exchange): Promise<Response> {
    const { method, url } = exchange;
    const path = url.pathname;
    const exact = this.#exact.get(path) ?? [];
    const wanted = method === "HEAD" ? "GET" : method;
    const found = exact.find((route) => route.method === wanted);
    if (found !== undefined) return await found.handle(exchange);
    const parts = path.split("/");
    const allowed = new Set(exact.map((route) => route.method));
    for (const { parts: pattern, route } of this.#patterns) {
      const params = match(pattern, parts);
      if (params === null) continue;
      if (route.method === wanted) return await route.handle(withParams(exchange, params));
      allowed.add(route.method);
    }
    if (allowed.size === 0) throw new AppError("not_found", `there is no ${path} here`);
    return Response.json(
      {
        error: {
          message: `${path} takes ${[...allowed].join(", ")}`,
          type: "BadRequestError",
          param: null,
          code: 405,
        },
      },
      { status: 405, headers: { allow: [...allowed].join(", ") } },
    );
  }
}

function match(
  pattern: readonly string[],
  parts: readonly string[],
): Record<string, string> | null {
  if (pattern.length !== parts.length) return null;
  const params: Record<string, string> = {};
  for (const [i, part] of pattern.entries()) {
    const given = parts[i] ?? "";
    if (!part.startsWith(":")) {
      if (part !== given) return null;
    } else {
      if (given === "") return null;
      params[part.slice(1)] = decoded(given);
    }
  }
  return params;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function withParams(exchange: Exchange, params: Readonly<Record<string, string>>): Exchange {
  return {
    method: exchange.method,
    url: exchange.url,
    params,
    headers: exchange.headers,
    signal: exchange.signal,
    bytes: () => exchange.bytes(),
    json: () => exchange.json(),
  };
}

class FetchExchange implements Exchange {
  readonly method: string;
  readonly url: URL;
  readonly params = {};
  readonly #request: Request;
  readonly #bytesMax: number;
  #bytes: Promise<Uint8Array> | null = null;

  constructor(request: Request, url: URL, bytesMax: number) {
    this.method = request.method;
    this.url = url;
    this.#request = request;
    this.#bytesMax = bytesMax;
  }

  get headers(): Headers {
    return this.#request.headers;
  }

  get signal(): AbortSignal {
    return this.#request.signal;
  }

  bytes(): Promise<Uint8Array> {
    this.#bytes ??= readBody(this.#request, this.#bytesMax);
    return this.#bytes;
  }

  async json(): Promise<unknown> {
    const bytes = await this.bytes();
    if (bytes.length === 0) return null;
    try {
      return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message : String(cause);
      throw new AppError("invalid_json", `the body is not JSON: ${reason}`, { cause });
    }
  }
}
