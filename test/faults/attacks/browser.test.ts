// Attacks what a page in a browser on the same machine can send: every route and socket of a sidecar without a token,
// with foreign Origin, Host and Sec-Fetch-Site headers, as forms and preflights; then the stand-alone draft server.

import { expect, setDefaultTimeout, test } from "bun:test";
import { engineTest } from "../../suite/engine-test.ts";
import { ToolProcess } from "../process.ts";
import { servedTool } from "../served-tool.ts";
import { socketStatus } from "./sockets.ts";

setDefaultTimeout(180_000);

const victim = servedTool();

const FOREIGN: readonly Record<string, string>[] = [
  { origin: "http://evil.example" },
  { origin: "null" },
  { origin: "http://localhost:1" },
  { host: "evil.example" },
  { host: "evil.example", origin: "http://evil.example" },
  { "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors" },
];

engineTest("browser: no route takes a request that a foreign page sent", async () => {
  const { paths } = (await victim().http.json("/openapi.json")) as {
    paths: Record<string, Record<string, unknown>>;
  };
  const wrong: string[] = [];
  for (const [path, methods] of Object.entries(paths)) {
    for (const method of [...Object.keys(methods), "options"]) {
      for (const headers of FOREIGN) {
        const answer = await victim().http.call(path.replaceAll(/\{\w+\}/g, "x"), {
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
  expect(await victim().http.json("/is_paused")).toMatchObject({ is_paused: false });
});

engineTest("browser: no socket opens for a foreign page", async () => {
  for (const path of ["/v1/stream", "/v1/draft"]) {
    for (const headers of FOREIGN)
      expect(await socketStatus(victim().url + path, headers)).toBe(403);
    const { origin } = victim().http.url;
    expect(await socketStatus(victim().url + path, { origin })).toBe(101);
    expect(await socketStatus(victim().url + path)).toBe(101);
  }
});

test("browser: the stand-alone draft server opens for no foreign page", async () => {
  const server = await ToolProcess.listening("draft-server", "--port", "0");
  for (const headers of FOREIGN) expect(await socketStatus(server.url, headers)).toBe(403);
  expect(await socketStatus(server.url)).toBe(101);
  server.signal("SIGTERM");
  expect(await server.exited).toBe(0);
});
