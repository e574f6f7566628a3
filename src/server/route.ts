// What the HTTP server is made of: routes that turn an exchange into a response. A handler throws AppError
// for whatever is wrong with the request; the server turns it into the answer, once.

import type { IdLists } from "./body-reader.ts";
import type { StreamHold } from "./open-streams.ts";

export interface Exchange {
  /** In the answer's header, and in every line of the log about the request. */
  readonly id: string;
  readonly method: string;
  readonly url: URL;
  /** Parts of the path that a route names with `:name`. */
  readonly params: Readonly<Record<string, string>>;
  readonly headers: Headers;
  /** Aborts when the client has disconnected. */
  readonly signal: AbortSignal;
  /**
   * The body as JSON; null where there is none. Default: plain. @throws AppError as readBody and BodyReader;
   * invalid_json.
   */
  json(lists?: IdLists): Promise<unknown>;
  /** Stands for the body's bytes: other bytes have another one. @throws AppError as `json`. */
  digest(): Promise<string>;
  /** The body is not asked for any more. Who answers much later calls it, so that it is not kept in memory. */
  release(): void;
  /** The answer is a stream, whose writer reports its progress. */
  streams(): StreamHold;
}

export interface Route {
  readonly method: "GET" | "POST" | "DELETE";
  /** `/v1/rollouts/:id` */
  readonly path: string;
  readonly handle: (exchange: Exchange) => Promise<Response> | Response;
}

export function jsonResponse(
  body: unknown,
  status = 200,
  headers: Record<string, string> = {},
): Response {
  return Response.json(body, { status, headers });
}

/** What an answer of 400 or more says. */
export async function reasonIn(response: Response): Promise<string | null> {
  const type = response.headers.get("content-type") ?? "";
  if (response.status < 400 || !type.startsWith("application/json")) return null;
  const body: unknown = await response.clone().json();
  const fieldOf = (of: unknown, name: string): unknown =>
    typeof of === "object" && of !== null ? Reflect.get(of, name) : null;
  const text = fieldOf(fieldOf(body, "error"), "message") ?? fieldOf(body, "status");
  return typeof text === "string" ? text : null;
}
