// Routes, which turn an exchange into a response, and the router, which finds one by path and method. A handler throws
// AppError for every fault of the request; the server turns it into the answer, once. To add a route: docs/EXTENDING.md.

import type { GenericSchema } from "valibot";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import type { IdLists } from "./body-reader.ts";

export interface Exchange {
  /** Request id, in the answer's header and in every log line about the request. */
  readonly id: string;
  readonly method: string;
  readonly url: URL;
  /** Parts of the path that a route names with `:name`; the router sets them. */
  params: Readonly<Record<string, string>>;
  /** A note of the route on the body, for the log. Default: none. */
  about?: string;
  readonly headers: Headers;
  readonly signal: AbortSignal;
  /** The body as JSON; null: there is none. Default: plain. @throws AppError as readBody and BodyReader. */
  json(lists?: IdLists): Promise<unknown>;
  /** SHA-256 of the body's bytes. @throws AppError as `json`. */
  digest(): Promise<string>;
  /** The body's text, where it may hold a chat; else empty. @throws AppError as `json`. */
  source(): Promise<string>;
  /** Frees the body. A handler that answers much later calls it, so that the body is not kept in memory. */
  release(): void;
  /** Called if the answer is a stream: its writer reports progress to the result. */
  streams(): StreamHold;
}

export interface StreamHold {
  /** The client has taken everything written so far. */
  took(): void;
  /** All is written; the connection sends the rest. */
  ended(): void;
}

/** Permission to call: without a token, for load balancers, or with the API token. */
export type Right = "open" | "token";

/** A valibot schema, or a JSON schema where bodies are passed on unchecked. */
export type Schema = GenericSchema | Readonly<Record<string, unknown>>;

/** Description of a route. The router, rights, the OpenAPI document, the reference and the fuzz targets read it. */
export interface RouteInfo {
  readonly method: "GET" | "POST" | "DELETE";
  /** Path of the route, such as `/v1/rollouts/:id`. */
  readonly path: string;
  readonly summary: string;
  /** Permission to call it. Default: "token". */
  readonly right?: Right;
  /** Schema of the body. Default: the route takes none, or any. */
  readonly schema?: Schema;
  /** Whether the route may answer with a stream of events. Default: no. */
  readonly streams?: boolean;
  /** Media types of its answer; none: it is empty. Default: JSON. */
  readonly answers?: readonly string[];
  /** Whether load balancers and trainers call it every second, so that the log has no lines about it. Default: no. */
  readonly isProbe?: boolean;
  /** JSON Schemas of the parameters in the query; none is required. */
  readonly query?: Readonly<Record<string, object>>;
}

export interface Route extends RouteInfo {
  readonly handle: (exchange: Exchange) => Promise<Response> | Response;
}

/** A route as a constant, before the parts that its handler needs exist: `bound` makes routes of rows and parts. */
export interface Row<Parts> extends RouteInfo {
  readonly handle: (parts: Parts, exchange: Exchange) => Promise<Response> | Response;
}

export function bound<Parts>(rows: readonly Row<Parts>[], parts: Parts): Route[] {
  return rows.map((row) => ({ ...row, handle: (exchange) => row.handle(parts, exchange) }));
}

export function nameOf({ method, path }: Pick<RouteInfo, "method" | "path">): string {
  return `${method} ${path}`;
}

export function invalid(field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "request", field, problem });
}

/** A number in a path, a query or a header. @throws InvalidFieldError: it is not all digits, or is above `max`. */
export function wholeNumber(field: string, text: string, max = Number.MAX_SAFE_INTEGER): number {
  const value = Number(text);
  if (/^\d+$/.test(text) && value <= max) return value;
  const bound = max < Number.MAX_SAFE_INTEGER ? ` in 0..${max}` : "";
  throw invalid(field, `is ${JSON.stringify(text)}, not a whole number${bound}`);
}

/** A field of an unchecked body; null: the body does not have it. */
export function fieldOf(body: unknown, name: string): unknown {
  return typeof body === "object" && body !== null ? (Reflect.get(body, name) ?? null) : null;
}

const CHARACTERS_MAX = 4096;

/** A text in an unchecked body. @throws InvalidFieldError: it is missing, empty or too long. */
export function textIn(body: unknown, field: string, charactersMax = CHARACTERS_MAX): string {
  const value = optionalTextIn(body, field, charactersMax);
  if (value === null || value === "") throw invalid(field, "is not a text");
  return value;
}

/** A text in an unchecked body; null: it does not have the field. @throws InvalidFieldError: it is no text, or too long. */
export function optionalTextIn(
  body: unknown,
  field: string,
  charactersMax = CHARACTERS_MAX,
): string | null {
  const value = fieldOf(body, field);
  if (value === null) return null;
  if (typeof value !== "string") throw invalid(field, "is not a text");
  if (value.length <= charactersMax) return value;
  throw invalid(field, `has ${value.length} characters, more than ${charactersMax}`);
}

export function jsonResponse(
  body: unknown,
  status = 200,
  headers: Record<string, string> = {},
): Response {
  return Response.json(body, { status, headers });
}

/** Error message of an answer of 400 or more. */
export async function reasonIn(response: Response): Promise<string | null> {
  const type = response.headers.get("content-type") ?? "";
  if (response.status < 400 || !type.startsWith("application/json")) return null;
  const body: unknown = await response.clone().json();
  const text = fieldOf(fieldOf(body, "error"), "message") ?? fieldOf(body, "status");
  return typeof text === "string" ? text : null;
}

interface Found {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

export class Router {
  readonly #exact = new Map<string, Found[]>();
  readonly #patterns: { readonly route: Route; readonly pattern: URLPattern }[] = [];
  readonly #otherwise: Route["handle"];

  /** `otherwise`: answers requests that match no route. Default: 404. */
  constructor(
    routes: readonly Route[],
    otherwise: Route["handle"] = ({ url }) => {
      throw new AppError("not_found", `there is no ${url.pathname} here`);
    },
  ) {
    this.#otherwise = otherwise;
    for (const route of routes) {
      const { path: pathname } = route;
      const isPattern = pathname.includes("/:");
      if (isPattern) this.#patterns.push({ route, pattern: new URLPattern({ pathname }) });
      else this.#exact.set(pathname, [...(this.#exact.get(pathname) ?? []), { route, params: {} }]);
    }
  }

  /** `permit`: called first, with the route or null. @throws AppError not_found, and as `permit` and the route. */
  async handle(
    exchange: Exchange,
    permit: (route: Route | null) => void = () => {},
  ): Promise<Response> {
    const { method, url } = exchange;
    const wanted = method === "HEAD" ? "GET" : method;
    const isWanted = ({ route }: Found) => route.method === wanted;
    const exact = this.#exact.get(url.pathname) ?? [];
    const others = exact.some(isWanted) ? [] : this.#matching(url.pathname);
    const found = [...exact, ...others];
    const one = found.find(isWanted);
    permit(one?.route ?? null);
    if (one !== undefined) {
      const { route, params } = one;
      const given = route.right === "open" ? bare(exchange) : exchange;
      return await route.handle(Object.assign(given, { params }));
    }
    if (found.length === 0) return await this.#otherwise(exchange);
    const allow = [...new Set(found.map(({ route }) => route.method))].join(", ");
    const message = `${url.pathname} takes ${allow}`;
    const error = { message, type: "BadRequestError", param: null, code: 405 };
    return Response.json({ error }, { status: 405, headers: { allow } });
  }

  #matching(pathname: string): Found[] {
    return this.#patterns.flatMap(({ route, pattern }): Found[] => {
      const groups = pattern.exec({ pathname })?.pathname.groups;
      if (groups === undefined) return [];
      const parts = Object.entries(groups).map(([name, part]) => [name, decoded(part ?? "")]);
      return [{ route, params: Object.fromEntries(parts) }];
    });
  }
}

/** The exchange of an open route, which anybody may call, without query and body: wrappers of its handler cannot read them. */
function bare(exchange: Exchange): Exchange {
  const url = new URL(exchange.url.pathname, exchange.url);
  const none = async () => "";
  return { ...exchange, url, json: async () => null, digest: none, source: none };
}

/** The part of a path without its escapes. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
