// What trainers send, and what they get: recorded exchanges, each file against a fresh server over simulated
// workers. Only ids, times and the server's own address differ from run to run.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { PlaneFixture } from "./plane-fixture.ts";

interface GoldenExchange {
  readonly request: {
    readonly method: string;
    readonly path: string;
    readonly headers: Record<string, string>;
    readonly body: unknown;
  };
  readonly response: { readonly status: number; readonly body: unknown };
}

interface GoldenFile {
  /** The trainer that sends this request, and when. */
  readonly source: string;
  readonly exchanges: readonly GoldenExchange[];
}

const GOLDEN_NAMES = ["trl", "skyrl", "prime-rl", "slime", "nemo-gym"] as const;

function goldenFile(name: (typeof GOLDEN_NAMES)[number]): GoldenFile {
  return JSON.parse(readFileSync(new URL(`${name}.json`, import.meta.url), "utf8"));
}

/** An answer without what differs from run to run. */
function normal(text: string, origin: string): unknown {
  return JSON.parse(
    text
      .replaceAll(/"created":\d+/g, '"created":0')
      .replaceAll(/[0-9a-f]{32}/g, "ID")
      .replaceAll(origin, "ORIGIN"),
  );
}

for (const name of GOLDEN_NAMES) {
  test(`${name}: gets the same answers, field by field`, async () => {
    const fixture = new PlaneFixture();
    try {
      for (const { request, response } of goldenFile(name).exchanges) {
        const { method, path, headers, body } = request;
        const init = body === null ? {} : { body: JSON.stringify(body) };
        const sent = fetch(fixture.url + path, {
          method,
          headers: { "content-type": "application/json", ...headers },
          ...init,
        });
        const answer = await fixture.until(sent);
        const seen = normal(await answer.text(), fixture.url);
        expect({ path, status: answer.status, body: seen }).toEqual({ path, ...response });
      }
    } finally {
      await fixture.close();
    }
  });
}
