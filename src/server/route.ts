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
  /** The body as it came. @throws AppError payload_too_large. */
  bytes(): Promise<Uint8Array>;
  /** The body as JSON; null where there is none. @throws AppError payload_too_large, invalid_json. */
  json(): Promise<unknown>;
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
