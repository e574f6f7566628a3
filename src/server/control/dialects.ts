// Control calls of trainers' and other engines' dialects, answered by the routes of vLLM that do the same: a dialect
// translates the call, and writes the answer in its own shape. The dialects themselves are in src/adapters.

import { AppError, errorText } from "../../core/base/errors.ts";
import { statusOf } from "../http-errors.ts";
import { type Exchange, type Route, type RouteInfo, reasonIn } from "../route.ts";

/** A route of vLLM's, by method and path. */
export type CallRoute = (route: string, exchange: Exchange) => Promise<Response>;

export interface Call {
  readonly route: string;
  readonly query?: Readonly<Record<string, string | readonly string[]>>;
  readonly body?: unknown;
}

export interface Dialect {
  readonly route: string;
  readonly summary: string;
  readonly call: (body: unknown) => Call;
  readonly answer: (done: Done) => Response;
  /** Media types of its answer; none: it is empty. Default: JSON. */
  readonly answers?: readonly string[];
}

export interface Done {
  readonly isSuccess: boolean;
  readonly status: number;
  readonly message: string;
  readonly body: unknown;
}

const DONE = "done";

export function infoOf({ route, summary, answers }: Dialect): RouteInfo {
  const schema = route.startsWith("GET") ? {} : { schema: { type: "object" } };
  return { ...partsOf(route), summary, ...schema, ...(answers && { answers }) };
}

export function dialectRoutes(dialects: readonly Dialect[], call: CallRoute): Route[] {
  return dialects.map((dialect) => ({
    ...infoOf(dialect),
    handle: async (exchange) => dialect.answer(await doneBy(dialect, exchange, call)),
  }));
}

async function doneBy(dialect: Dialect, exchange: Exchange, call: CallRoute): Promise<Done> {
  try {
    const given = exchange.method === "GET" ? null : await exchange.json();
    const wanted = dialect.call(given);
    const response = await call(wanted.route, asCall(exchange, wanted));
    const message =
      (await reasonIn(response)) ?? (response.ok ? DONE : `status ${response.status}`);
    const isJson = response.headers.get("content-type")?.startsWith("application/json") ?? false;
    const body: unknown = isJson ? await response.json() : null;
    return { isSuccess: response.ok, status: response.status, message, body };
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    const message = errorText(error);
    return { isSuccess: false, status: statusOf(error), message, body: { error: { message } } };
  }
}

/** The exchange as if the client had sent this call. */
function asCall(exchange: Exchange, { route, query = {}, body = null }: Call): Exchange {
  const { method, path } = partsOf(route);
  const url = new URL(path, exchange.url);
  for (const [name, value] of Object.entries(query)) {
    for (const one of typeof value === "string" ? [value] : value)
      url.searchParams.append(name, one);
  }
  return {
    id: exchange.id,
    params: exchange.params,
    headers: exchange.headers,
    signal: exchange.signal,
    method,
    url,
    json: () => Promise.resolve(body),
    digest: () => exchange.digest(),
    release: () => exchange.release(),
    streams: () => exchange.streams(),
  };
}

function partsOf(route: string): { method: "GET" | "POST"; path: string } {
  const [method, path = ""] = route.split(" ");
  return { method: method === "GET" ? "GET" : "POST", path };
}
