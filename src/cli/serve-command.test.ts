// `foretoken serve` as a process of its own, in front of an engine that never gets ready.

import { expect, test } from "bun:test";
import { join } from "node:path";
import { ROOT, start } from "../../test/e2e/tool.ts";
import { EXIT_INTERRUPTED } from "./exit.ts";

test("serve: a signal while engines are being opened ends it", async () => {
  const asked = Promise.withResolvers<void>();
  const engine = Bun.serve({
    port: 0,
    idleTimeout: 0,
    fetch: async (request) => {
      if (new URL(request.url).pathname === "/v1/models") {
        return Response.json({ data: [{ id: "m" }] });
      }
      asked.resolve();
      return await new Promise<Response>(() => {});
    },
  });
  const tokenizer = join(ROOT, "test", "fixtures", "foretoken-3m-hf");
  const worker = engine.url.href;
  const tool = start(["serve", "--port", "0", "--worker", worker, "--tokenizer", tokenizer]);
  try {
    await asked.promise;
    tool.kill("SIGTERM");
    expect(await tool.exited).toBe(EXIT_INTERRUPTED);
  } finally {
    tool.kill("SIGKILL");
    await engine.stop(true);
  }
}, 30_000);
