// The HTTP server: who may ask (origin, host, tokens), errors, and the sockets. It knows nothing of what the
// routes do.

import { hostname } from "node:os";
import type { Later } from "../core/base/clock.ts";
import { contain } from "../core/base/contain.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { type OpenWait, waitMsMax } from "../core/base/waits.ts";
import { CLOSE } from "../proto/close-codes.ts";
import { Access } from "./access.ts";
import { BodyBudget, type BodyOptions, readBody } from "./body.ts";
import { BodyReader, type ReadBody, unpacked } from "./body-reader.ts";
import { CLIENT_GONE, errorResponse, statusOf } from "./http-errors.ts";
import { EVENTS, NDJSON } from "./pulled-stream.ts";
import { type Exchange, type Route, Router, reasonIn } from "./route.ts";

export interface Socket {
  /** Returns the bytes sent; -1: the message waits in a buffer; 0: it was dropped. */
  send(data: string | Uint8Array): number;
  getBufferedAmount(): number;
  close(code: number, reason: string): void;
}

export interface SocketService {
  open(socket: Socket): void;
  message(socket: Socket, data: string | Uint8Array): void;
  close(socket: Socket): void;
  /** Called when the socket's buffer is empty again. */
  drain(socket: Socket): void;
}

export interface Served {
  readonly routes: readonly Route[];
  readonly sockets: Readonly<Record<string, SocketService>>;
  /** Answers requests that match no route. Default: 404. */
  readonly otherwise?: Route["handle"];
}

export interface HttpOptions extends Served {
  /** Token that every route requires, except open ones; null: no token is needed. */
  readonly apiToken: string | null;
  readonly host: string;
  readonly port: number;
  /** Origins beyond the server's own; see AccessOptions. Default: none. */
  readonly allowOrigins?: readonly string[];
  readonly bodyBytesMax: number;
  /** Room for the bodies that are read at the same time. Default: four of the largest size. */
  readonly bodies?: BodyBudget;
  readonly frameBytesMax: number;
  readonly answered: (entry: AccessEntry) => void;
  /** Called with an error that is not the client's. */
  readonly failed: (error: unknown) => void;
}

export interface AccessEntry {
  readonly id: string;
  readonly method: string;
  readonly path: string;
  /** The query without tokens, and what a route notes about its body. */
  readonly asked: string;
  readonly status: number;
  readonly ms: number;
  /** Error message of an answer with status 400 or above; null: none. */
  readonly reason: string | null;
}

export type HttpServer = ReturnType<typeof serveHttp>;

/** A stream that is being written, and its client: reported when the server stops and waits for them. */
export interface OpenStream {
  readonly method: string;
  readonly path: string;
  readonly id: string;
  /** Address and port of the client; null: not known. */
  readonly client: string | null;
  readonly takenMs: number;
}

type BunServer = Bun.Server<SocketService>;

/** Time after which an idle connection is closed: longer than clients keep theirs (Node 5 s, Go 90 s). */
const IDLE_S = 120;
const BODIES_READ_MAX = 4;
const BODY_MS_MAX = waitMsMax("body");
/** Time without progress after which the budget counts as stuck: every body gives its room back sooner. */
const BODIES_STUCK_MS = 2 * BODY_MS_MAX;

export function serveHttp(options: HttpOptions) {
  const front = new Front(options);
  const server = Bun.serve<SocketService>({
    hostname: options.host,
    port: options.port,
    // The limit is `readBody`'s, which says so in the answer; Bun would only cut the connection.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    // Of connections without a request. Bun gives a request's head some 12 s, whatever is set.
    idleTimeout: IDLE_S,
    fetch: (request, bun) => front.answer(request, bun),
    websocket: socketsOf(options),
  });
  return {
    url: server.url,
    /** Replaces the routes and sockets. */
    serve: (served: Served) => front.serve(served),
    streams: (): OpenStream[] => [...front.streams],
    /** The body whose turn to be read comes next; null: none waits. */
    bodyWait: (): OpenWait | null => front.reader.lane.wait,
    /** Takes no more connections; resolves when every answer has gone out and every socket is closed. */
    finish: async () => {
      await server.stop();
      front.reader.close();
    },
    stop: async () => {
      front.reader.close();
      await server.stop(true);
    },
  };
}

class Front {
  readonly reader = new BodyReader();
  readonly streams = new Set<OpenStream>();
  readonly #options: HttpOptions;
  readonly #access: Access;
  readonly #body: BodyOptions;
  #router: Router;
  #sockets: Served["sockets"];

  constructor(options: HttpOptions) {
    const { bodyBytesMax, routes, sockets, otherwise, host, apiToken, allowOrigins = [] } = options;
    this.#options = options;
    this.#router = new Router(routes, otherwise);
    this.#sockets = sockets;
    this.#access = new Access({
      boundHost: host,
      machineName: hostname(),
      apiToken,
      allowOrigins,
    });
    const nowMs = () => performance.now();
    const bytesMax = BODIES_READ_MAX * bodyBytesMax;
    const limits = { bytesMax, waitMsMax: waitMsMax("body_room"), later, nowMs };
    const budget = options.bodies ?? new BodyBudget(limits);
    this.#body = { bytesMax: bodyBytesMax, msMax: BODY_MS_MAX, budget, later };
  }

  serve({ routes, sockets, otherwise }: Served): void {
    this.#router = new Router(routes, otherwise);
    this.#sockets = sockets;
  }

  /** Returns undefined where the connection has become a socket. */
  async answer(request: Request, bun: BunServer): Promise<Response | undefined> {
    const startMs = performance.now();
    // Responses take as long as they take; a quiet stream is not a dead one.
    bun.timeout(request, 0);
    const exchange = this.#exchangeOf(request, bun);
    const { id, method, url } = exchange;
    const report = (status: number, reason: string | null) => {
      const about = { id, method, path: url.pathname, asked: askedIn(exchange) };
      this.#options.answered({ ...about, status, ms: performance.now() - startMs, reason });
    };
    const origin = request.headers.get("origin");
    const shared = origin === null ? null : this.#access.sharing(origin);
    const own = { ...shared, "x-request-id": id, ...(closes(request) && CLOSING) };
    try {
      const response = await this.#routed(exchange, shared !== null, (data) =>
        bun.upgrade(request, { data }),
      );
      report(response?.status ?? 101, response === null ? null : await reasonIn(response));
      if (response === null) return undefined;
      // A stream may be silent for as long as an engine is.
      const type = response.headers.get("content-type") ?? "";
      if (!type.startsWith(EVENTS) && !type.startsWith(NDJSON)) bun.timeout(request, IDLE_S);
      return withHeaders(response, own);
    } catch (error) {
      if (request.signal.aborted) {
        report(CLIENT_GONE, "the client disconnected");
        return new Response(null, { status: CLIENT_GONE });
      }
      if (!(error instanceof AppError)) this.#options.failed(error);
      report(statusOf(error), errorText(error));
      bun.timeout(request, IDLE_S);
      return withHeaders(errorResponse(error), { ...own, ...(exchange.isUnread && CLOSING) });
    }
  }

  /** Returns null where the connection has become a socket. @throws what the route throws, and AppError as Access. */
  async #routed(
    exchange: Exchange,
    isShared: boolean,
    upgrade: (data: SocketService) => boolean,
  ): Promise<Response | null> {
    const { method, url, headers } = exchange;
    this.#access.check({ method, path: url.pathname, headers });
    // A browser asks so before it sends what a form cannot; it has no token for that.
    if (isShared && method === "OPTIONS") return new Response(null, { status: 204 });
    const service = this.#sockets[url.pathname];
    if (service === undefined) {
      return await this.#router.handle(exchange, (route) => {
        if (route?.right !== "open") this.#access.authorize(headers, url);
        if (route?.isProbe) this.#checkBodies();
      });
    }
    this.#access.authorize(headers, url);
    if (upgrade(service)) return null;
    throw new AppError("upgrade_required", `${url.pathname} is a WebSocket`);
  }

  /** Throws if bodies are stuck: a server that can read no request is not healthy. @throws AppError internal_error. */
  #checkBodies(): void {
    const { stuckMs } = this.#body.budget;
    if (stuckMs <= BODIES_STUCK_MS) return;
    const seconds = Math.round(stuckMs / 1000);
    throw new AppError("internal_error", `no request body has found room for ${seconds} s`);
  }

  /** `isUnread`: the body was read in part, so that the connection can carry no further request. */
  #exchangeOf(request: Request, bun: BunServer): Exchange & { readonly isUnread: boolean } {
    const { method, headers, signal } = request;
    const id = requestIdOf(headers);
    const url = urlOf(request);
    let read: Promise<ReadBody> | null = null;
    let isUnread = false;
    const readOnce = async () => {
      isUnread = true;
      const { bytes, release } = await readBody(request, this.#body);
      isUnread = false;
      try {
        return await this.reader.read(bytes, signal);
      } finally {
        release();
      }
    };
    const whole = () => {
      read ??= readOnce();
      return read;
    };
    return {
      id,
      method,
      url,
      headers,
      signal,
      params: {},
      get isUnread() {
        return isUnread;
      },
      json: async (lists = "plain") => {
        const { value } = await whole();
        return lists === "packed" ? value : unpacked(value);
      },
      digest: async () => (await whole()).digest,
      source: async () => (await whole()).source,
      release: () => {
        read = null;
      },
      streams: () => {
        const ip = bun.requestIP(request);
        const client = ip === null ? null : `${ip.address}:${ip.port}`;
        const stream = { id, method, path: url.pathname, client, takenMs: performance.now() };
        this.streams.add(stream);
        return {
          took: () => {
            stream.takenMs = performance.now();
          },
          ended: () => {
            this.streams.delete(stream);
            bun.timeout(request, IDLE_S);
          },
        };
      },
    };
  }
}

const later: Later = (act, ms) => {
  const timer = setTimeout(act, ms);
  return () => clearTimeout(timer);
};

const SANE_ID = /^[\x21-\x7e]{1,128}$/;

/** The client's own X-Request-Id, if it can stand in a header and a log line. */
function requestIdOf(headers: Headers): string {
  const clientId = headers.get("x-request-id");
  return clientId !== null && SANE_ID.test(clientId) ? clientId : crypto.randomUUID();
}

function askedIn({ url, about = "" }: Exchange): string {
  if (url.search === "" && about === "") return "";
  const query = new URLSearchParams(url.search);
  for (const secret of ["token", "api_key"]) query.delete(secret);
  return [query.toString(), about].filter((part) => part !== "").join(" ");
}

/** Hands each socket to the service that it was opened for. What a service throws ends this one connection. */
function socketsOf({ frameBytesMax, failed }: HttpOptions): Bun.WebSocketHandler<SocketService> {
  type Opened = Bun.ServerWebSocket<SocketService>;
  const contained = (socket: Opened, act: () => void) =>
    contain(act, (error) => {
      failed(error);
      socket.close(CLOSE.internal, "internal_error");
    });
  return {
    maxPayloadLength: frameBytesMax,
    idleTimeout: IDLE_S,
    sendPings: true,
    open: (socket) => contained(socket, () => socket.data.open(socket)),
    message: (socket, data) => contained(socket, () => socket.data.message(socket, data)),
    close: (socket) => contained(socket, () => socket.data.close(socket)),
    drain: (socket) => contained(socket, () => socket.data.drain(socket)),
  };
}

const CLOSING = { connection: "close" };

/** Whether to say that the connection closes: Bun closes it all the same, and SkyRL's client would ask on it again. */
function closes(request: Request): boolean {
  const options = request.headers.get("connection")?.toLowerCase().split(",") ?? [];
  return options.some((option) => option.trim() === "close");
}

/**
 * URL of a request: its path alone if the Host cannot stand in a URL. Double slashes, from a base URL that ends with
 * one, become one, and one at the end of the path goes: FastAPI, and so vLLM, redirects to the path without it.
 */
function urlOf(request: Request): URL {
  const path = request.url.replace(/^\w+:\/\/[^/]*/, "");
  const url = URL.canParse(request.url) ? new URL(request.url) : new URL(path, "http://invalid");
  url.pathname = url.pathname.replace(/\/{2,}/g, "/").replace(/(.)\/$/, "$1");
  return url;
}

function withHeaders(response: Response, headers: Readonly<Record<string, string>>) {
  for (const [name, value] of Object.entries(headers)) response.headers.set(name, value);
  return response;
}
