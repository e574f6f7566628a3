// Attacks what a page in a browser on the same machine can send: every route and socket of a sidecar without a token,
// with foreign Origin, Host and Sec-Fetch-Site headers, as forms and preflights; then the stand-alone draft server.

import { afterAll, beforeAll, expect, test } from "bun:test";
import { WebSocket as Client } from "ws";
import { engineMissing, start } from "../../e2e/tool.ts";
import { Victim } from "./edge-bed.ts";

let victim: Victim;

beforeAll(async () => {
  if (engineMissing() === null) victim = await Victim.start();
}, 180_000);

afterAll(async () => {
  await victim?.stop();
});

const attack = test.skipIf(engineMissing() !== null);

const FOREIGN: readonly Record<string, string>[] = [
  { origin: "http://evil.example" },
  { origin: "null" },
  { origin: "http://localhost:1" },
  { host: "evil.example" },
  { host: "evil.example", origin: "http://evil.example" },
  { "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" },
];

interface Routes {
  readonly paths: Record<string, Record<string, unknown>>;
}

attack(
  "browser: no route takes a request that a foreign page sent",
  async () => {
    const document = await fetch(new URL("/openapi.json", victim.url));
    const { paths } = (await document.json()) as Routes;
    const wrong: string[] = [];
    for (const [path, methods] of Object.entries(paths)) {
      for (const method of [...Object.keys(methods), "options"]) {
        for (const headers of FOREIGN) {
          const answer = await fetch(new URL(path.replaceAll(/\{\w+\}/g, "x"), victim.url), {
            method: method.toUpperCase(),
            headers: { ...headers, "content-type": "text/plain" },
            ...(method === "post" ? { body: "{}" } : {}),
          });
          const shared = answer.headers.get("access-control-allow-origin");
          await answer.arrayBuffer();
          if (answer.status === 403 && shared === null) continue;
          wrong.push(`${method} ${path} ${JSON.stringify(headers)}: ${answer.status}`);
        }
      }
    }
    expect(wrong).toEqual([]);
    const paused = await fetch(new URL("/is_paused", victim.url));
    expect(await paused.json()).toMatchObject({ is_paused: false });
  },
  180_000,
);

attack("browser: a refusal has vLLM's shape and names header, value and flag", async () => {
  const answer = await victim.post("/pause", {}, { origin: "http://evil.example" });
  expect(answer.status).toBe(403);
  expect(await answer.json()).toEqual({
    error: {
      message:
        "the Origin http://evil.example is not this server's: allow it with --allow-origin http://evil.example",
      type: "PermissionDeniedError",
      param: null,
      code: 403,
    },
  });
  const rebound = await victim.post("/pause", {}, { host: "evil.example:80" });
  expect(await rebound.text()).toContain("the Host evil.example:80 is not a name of this server");
});

attack("browser: the server's own page, and clients that are no browsers, are served", async () => {
  const { host, origin } = victim.url;
  for (const headers of [{}, { origin, "sec-fetch-site": "same-origin" }, { host }]) {
    expect((await victim.post("/tokenize", { prompt: "a" }, headers)).status).toBe(200);
  }
  expect(await victim.goodTokens()).toHaveLength(16);
});

/** The status of a refused upgrade; 101: it was taken. */
function upgraded(url: string, headers: Record<string, string>): Promise<number> {
  return new Promise((resolve, reject) => {
    const socket = new Client(url, { headers });
    socket.on("unexpected-response", (_, answer) => {
      resolve(answer.statusCode ?? 0);
      socket.terminate();
    });
    socket.on("open", () => {
      resolve(101);
      socket.close();
    });
    socket.on("error", reject);
  });
}

attack("browser: no socket opens for a foreign page", async () => {
  for (const path of ["/v1/stream", "/v1/draft"]) {
    const url = new URL(path, victim.url).href.replace("http", "ws");
    for (const headers of FOREIGN) expect(await upgraded(url, headers)).toBe(403);
    expect(await upgraded(url, { origin: victim.url.origin })).toBe(101);
    expect(await upgraded(url, {})).toBe(101);
  }
});

test("browser: the stand-alone draft server opens for no foreign page", async () => {
  const child = start(["draft-server", "--port", "0"]);
  const { value } = await child.stdout.getReader().read();
  const url = new TextDecoder().decode(value).trim().replace("draft server on ", "");
  for (const headers of FOREIGN) expect(await upgraded(url, headers)).toBe(403);
  expect(await upgraded(url, {})).toBe(101);
  child.kill("SIGTERM");
  expect(await child.exited).toBe(0);
});
