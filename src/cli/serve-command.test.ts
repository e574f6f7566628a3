// `foretoken serve` as a process of its own, in front of an engine that never gets ready.

import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { ROOT, start } from "../../test/e2e/tool.ts";
import { until } from "../../test/faults/http-client.ts";
import { ToolProcess } from "../../test/faults/process.ts";
import { engineTest } from "../../test/suite/engine-test.ts";
import { EXIT_INTERRUPTED } from "./output.ts";

setDefaultTimeout(180_000);

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
});

/** Starts the tool, and a request of so many tokens; returns its answer when the request is in flight. */
async function requested(tool: ToolProcess, max_tokens: number): Promise<Promise<Response>[]> {
  await tool.listens();
  const { http } = tool;
  await until(() => http.isServing(), "the engine");
  await http.post("/pause?mode=keep", {});
  const body = { prompt: "<|user|>", max_tokens, ignore_eos: true };
  const made = http.post("/v1/completions", body);
  made.catch(() => {});
  const unfinished = () => http.metric("foretoken_requests_unfinished");
  await until(async () => (await unfinished()) === 1, "a request in flight");
  return [made];
}

engineTest("serve: the end of its parent ends it, with a request in flight", async () => {
  const parent = Bun.spawn(["sleep", "600"]);
  const tool = new ToolProcess(EMBEDDED, { env: { FORETOKEN_PARENT: `${parent.pid}` } });
  try {
    await requested(tool, 3000);
    await tool.http.post("/resume", {});
    expect(tool.hasEnded).toBe(false);
    parent.kill("SIGKILL");
    await tool.exited;
  } finally {
    parent.kill("SIGKILL");
    await tool.kill();
  }
});

engineTest(
  "serve: a signal to the npx that started it drains it, and its port is free",
  async () => {
    const tool = new ToolProcess(EMBEDDED, { program: ["npx", "--offline", "foretoken"] });
    try {
      const [made] = await requested(tool, 300);
      tool.signal("SIGTERM");
      await until(
        () => tool.line(/draining/) !== null,
        () => tool.text,
        10_000,
      );
      await tool.http.post("/resume", {});
      expect(await (await made)?.json()).toMatchObject({ usage: { completion_tokens: 300 } });
      // Both outputs are closed when the last process that writes to them has ended.
      await tool.exited;
    } finally {
      await tool.kill();
    }
  },
);

test("serve: a parent that has ended already ends it", async () => {
  const parent = Bun.spawn(["true"]);
  await parent.exited;
  const tool = start(["serve", "--port", "0"], { FORETOKEN_PARENT: `${parent.pid}` });
  expect(await tool.exited).toBe(EXIT_INTERRUPTED);
});

const EMBEDDED = ["serve", "--llama", "1", "--slots", "1", "--kv-tokens", "4096", "--port", "0"];
