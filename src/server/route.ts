// What the HTTP server is made of: routes that turn an exchange into a response. A handler throws AppError
// for whatever is wrong with the request; the server turns it into the answer, once.

export interface Exchange {
  readonly method: string;
  readonly url: URL;
  /** Parts of the path that a route names with `:name`. */
  readonly params: Readonly<Record<string, string>>;
  readonly headers: Headers;
  /** Aborts when the client has gone. */
  readonly signal: AbortSignal;
  /** The body as JSON; null where there is none. @throws AppError as readBody; invalid_json. */
  json(): Promise<unknown>;
  /** Stands for the body's bytes: other bytes have another one. @throws AppError as `json`. */
  digest(): Promise<string>;
  /** The body is not asked for any more. Who answers much later calls it, so that it is not kept in memory. */
  release(): void;
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
