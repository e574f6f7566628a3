// `foretoken serve` without engines: they are added and removed over HTTP while it runs.

import { expect, test } from "bun:test";
import { untilTrue } from "./fleet.ts";
import { engineMissing, start } from "./tool.ts";

const missing = engineMissing();

async function lineOf(child: ReturnType<typeof start>, pattern: RegExp): Promise<string> {
  let text = "";
  for await (const part of child.stdout) {
    text += new TextDecoder().decode(part);
    const found = pattern.exec(text)?.[1];
    if (found !== undefined) return found;
  }
  throw new Error(`it ended: ${text}`);
}

test.skipIf(missing !== null)(
  "serve: starts without engines, serves with the first, and continues when it is replaced",
  async () => {
    const sidecar = start(["serve", "--port", "0", "--drain-s", "5"]);
    const engines = [0, 1].map(() => start(["worker", "--listen", "127.0.0.1:0"]));
    try {
      const url = await lineOf(sidecar, /foretoken on (\S+)\n/);
      const call = async (method: string, path: string, body?: object) => {
        const signal = AbortSignal.timeout(30_000);
        return await fetch(`${url}${path}`, { method, body: JSON.stringify(body), signal });
      };
      const complete = () => call("POST", "/v1/completions", { prompt: "sort 3 1", max_tokens: 8 });
      const serves = async (worker: string) => {
        const { workers } = (await (await call("GET", "/workers")).json()) as {
          workers: { url: string; is_healthy: boolean }[];
        };
        return workers.length === 1 && workers[0]?.url === worker && workers[0].is_healthy;
      };
      expect((await complete()).status).toBe(503);
      expect(await (await call("GET", "/health")).text()).toContain("POST /workers");
      const [first = "", second = ""] = await Promise.all(
        engines.map((engine) => lineOf(engine, /worker on (\S+)\n/)),
      );
      expect((await call("POST", "/workers", { url: first })).status).toBe(202);
      await untilTrue(() => serves(first), "the first engine");
      expect((await complete()).status).toBe(200);
      await call("POST", "/workers", { url: second });
      await call("DELETE", `/workers/${encodeURIComponent(first)}`);
      await untilTrue(() => serves(second), "the second engine");
      expect((await complete()).status).toBe(200);
    } finally {
      for (const child of [sidecar, ...engines]) child.kill();
      await Promise.all([sidecar, ...engines].map(({ exited }) => exited));
    }
  },
);
