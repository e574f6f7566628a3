import type { Exchange } from "../../src/server/route.ts";

/** A request for a handler, without a connection: what a test does not name, no client sent. */
export function exchangeOf(
  method: string,
  url: URL | string,
  body: unknown,
  fields: Partial<Exchange> = {},
): Exchange {
  return {
    ...{ id: "x", method, url: new URL(url, "http://sidecar"), params: {} },
    headers: new Headers(),
    signal: new AbortController().signal,
    streams: () => ({ took() {}, ended() {} }),
    digest: async () => JSON.stringify(body),
    release: () => {},
    json: async () => body,
    source: async () => JSON.stringify(body) ?? "",
    ...fields,
  };
}
