// Routes, which turn an exchange into a response. A handler throws AppError for every fault of the request; the server
// turns it into the answer, once. To add one: docs/EXTENDING.md.

import type { GenericSchema } from "valibot";
import { InvalidFieldError } from "../core/base/errors.ts";
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
