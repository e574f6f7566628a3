// `foretoken serve` without engines: they are added and removed over HTTP while it runs.

import { expect, test } from "bun:test";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { engineMissing } from "./tool.ts";

test.skipIf(engineMissing() !== null)(
  "serve: starts without engines, serves with the first, and continues when it is replaced",
  async () => {
    const [sidecar, ...engines] = await Promise.all([
      ToolProcess.listening("serve", "--port", "0", "--drain-s", "5"),
      ToolProcess.listening("worker", "--listen", "127.0.0.1:0"),
      ToolProcess.listening("worker", "--listen", "127.0.0.1:0"),
    ]);
    const { http } = sidecar;
    const [first = "", second = ""] = engines.map(({ url }) => url);
    const complete = async () => {
      return (await http.ask("/v1/completions", { prompt: "sort 3 1", max_tokens: 8 })).status;
    };
    const serves = async (url: string) => {
      const { workers } = (await http.json("/workers")) as {
        workers: { url: string; is_healthy: boolean }[];
      };
      return workers.length === 1 && workers[0]?.url === url && workers[0].is_healthy;
    };
    try {
      expect(await complete()).toBe(503);
      expect(await (await http.call("/health")).text()).toContain("POST /workers");
      expect((await http.ask("/workers", { url: first })).status).toBe(202);
      await until(() => serves(first), "the first engine");
      expect(await complete()).toBe(200);
      await http.ask("/workers", { url: second });
      await http.call(`/workers/${encodeURIComponent(first)}`, { method: "DELETE" });
      await until(() => serves(second), "the second engine");
      expect(await complete()).toBe(200);
    } finally {
      await Promise.all([sidecar, ...engines].map((one) => one.kill()));
    }
  },
  180_000,
);
