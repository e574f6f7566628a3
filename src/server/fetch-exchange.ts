// A request of Bun's server as the routes see it: its body is read once, when a route first wants it. The bytes are held
// no longer than it takes to parse them.

import { type BodyOptions, readBody } from "./body.ts";
import type { BodyReader, JsonBody } from "./body-reader.ts";
import type { Exchange } from "./route.ts";

export interface ExchangeOptions extends Pick<Exchange, "id" | "url" | "streams"> {
  readonly body: BodyOptions;
  readonly reader: BodyReader;
}

export interface FetchExchange extends Exchange {
  /** Whether the body was read in part, so that the connection can carry no further request. */
  readonly isUnread: boolean;
}

export function fetchExchange(request: Request, options: ExchangeOptions): FetchExchange {
  const { id, url, streams, body, reader } = options;
  let read: Promise<JsonBody> | null = null;
  let isUnread = false;
  const readOnce = async () => {
    isUnread = true;
    const { bytes, release } = await readBody(request, body);
    isUnread = false;
    try {
      return await reader.read(bytes, request.signal);
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
    url,
    streams,
    params: {},
    method: request.method,
    headers: request.headers,
    signal: request.signal,
    get isUnread() {
      return isUnread;
    },
    json: async (lists = "plain") => (await whole()).json(lists),
    digest: async () => (await whole()).digest,
    source: async () => (await whole()).source,
    release: () => {
      read = null;
    },
  };
}
