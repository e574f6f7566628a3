// How a sidecar begins: it listens at once, says what it waits for, serves with the workers that are there, and goes on
// trying the others. Real processes over stand-ins for vLLM.

import { describe, expect, onTestFinished, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { freePort } from "../../src/tools/up/ports.ts";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { VllmStandIn } from "../faults/stand-in/vllm-stand-in.ts";
import { temporaryFolder } from "../suite/temporary-folder.ts";
import { ended, engineMissing, PROMPTS, ROOT, start } from "./tool.ts";

setDefaultTimeout(180_000);

const TOKENIZER = join(ROOT, "test", "fixtures", "foretoken-3m-hf");

async function standIn(
  options: Parameters<typeof VllmStandIn.start>[0] = {},
): Promise<VllmStandIn> {
  const one = await VllmStandIn.start(options);
  onTestFinished(() => one.stop());
  return one;
}

async function serve(...args: string[]): Promise<{ proc: ToolProcess; url: string }> {
  const port = freePort("127.0.0.1");
  const proc = new ToolProcess(["serve", "--port", String(port), ...args]);
  onTestFinished(() => proc.kill());
  const url = `http://127.0.0.1:${port}`;
  await proc.said(/listening/);
  return { proc, url };
}

async function health(url: string): Promise<{ status: number; text: string }> {
  const answer = await fetch(`${url}/health`);
  return { status: answer.status, text: await answer.text() };
}

async function complete(url: string, model?: string): Promise<Response> {
  const body = { prompt: [1, 2, 3], max_tokens: 4, model };
  return await fetch(`${url}/v1/completions`, { method: "POST", body: JSON.stringify(body) });
}

const FILES = ["--tokenizer", TOKENIZER];

test("start: with one of two servers absent it serves at once, and takes the other when it comes", async () => {
  const there = await standIn();
  const port = freePort("127.0.0.1");
  const { proc, url } = await serve(
    ...FILES,
    "--worker",
    `http://127.0.0.1:${port}`,
    "--worker",
    there.url,
  );
  await until(async () => (await health(url)).status === 200, "health");
  expect((await complete(url, "stand-in")).status).toBe(200);
  await proc.said(new RegExp(`worker worker=http://127.0.0.1:${port} state=down reason=`));
  await proc.said(/^foretoken on /);
  await standIn({ port });
  await proc.said(new RegExp(`worker=http://127.0.0.1:${port} state=ready`));
});

test("start: without a server it reports what it waits for, and serves when one has loaded its model", async () => {
  const port = freePort("127.0.0.1");
  const { proc, url } = await serve(...FILES, "--worker", `http://127.0.0.1:${port}`);
  await proc.said(/model_unknown/);
  expect(await health(url)).toMatchObject({
    status: 503,
    text: expect.stringContaining("does not answer"),
  });
  const refused = await complete(url);
  expect([refused.status, refused.headers.get("retry-after")]).toEqual([503, "1"]);
  expect(await refused.text()).toContain("the server is starting");
  const loading = await standIn({ port, isLoading: true });
  await proc.said(/is still loading \(503\)/);
  expect((await health(url)).text).toContain("is still loading (503)");
  loading.isHealthy = true;
  await until(async () => (await health(url)).status === 200, proc.text);
  expect((await complete(url, "stand-in")).status).toBe(200);
});

test("start: --min-workers: health waits for as many, requests are served by those that are there", async () => {
  const there = await standIn();
  const loading = await standIn({ isLoading: true });
  const workers = ["--worker", there.url, "--worker", loading.url];
  const { proc, url } = await serve(...FILES, ...workers, "--min-workers", "2");
  await until(async () => (await complete(url)).status === 200, proc.text);
  await proc.said(/is still loading \(503\)/);
  const { status, text } = await health(url);
  expect(status).toBe(503);
  expect(JSON.parse(text)).toMatchObject({
    status: "starting: 1 of at least 2 workers are ready",
    workers: [
      { state: "ready", reason: null },
      { state: "down", reason: `${loading.url} is still loading (503)` },
    ],
  });
  loading.isHealthy = true;
  await until(async () => (await health(url)).status === 200, proc.text);
  // Once it has started, one worker is enough.
  await loading.stop();
  expect((await health(url)).status).toBe(200);
});

test("start: what no further try would change ends it at once", async () => {
  const cases: [string[], number, RegExp][] = [
    [["--worker", "gpu-0:8000"], 2, /URL is "gpu-0:8000"; it is http:\/\/HOST:PORT/],
    [["--worker", "http://127.0.0.1:9", "--tokenizer", "/nowhere"], 2, /\/nowhere/],
    [
      ["--worker", "http://127.0.0.1:9", "--min-workers", "2"],
      2,
      /--min-workers is 2, and there are 1/,
    ],
    [["--llama", "1", "--model", "/nowhere.gguf"], 2, /\/nowhere\.gguf/],
    [["--worker", "http://127.0.0.1:9", "--slots", "4"], 2, /--slots has no effect here/],
    [["--worker", "ws://127.0.0.1:9"], 2, /"ws:\/\/127.0.0.1:9" .* start a vLLM server/],
    [["--worker", "http://127.0.0.1:9", "--kv-tokens", "4096"], 2, /--kv-tokens has no effect/],
    [["--worker", "http://127.0.0.1:9", "--pool-dir", "/tmp"], 2, /--pool-dir/],
  ];
  for (const [args, status, told] of cases) {
    const result = await ended(start(["serve", "--port", "0", ...args]));
    expect([result.status, result.stderr]).toEqual([status, expect.stringMatching(told)]);
  }
});

describe.skipIf(engineMissing() !== null)("with embedded engines", () => {
  const dir = temporaryFolder("pools");

  test("pool: its SSD tier is a file that has no name, so that kill -9 leaves none", async () => {
    const args = ["--limit", "64", "--kv-tokens", "600", "--max-tokens", "400", "--quiet"];
    args.push("--chunk-tokens", "16", "--pool-memory-mb", "1", "--out", "/dev/null");
    const child = start(["rollout", PROMPTS, ...args], { TMPDIR: dir });
    const isOpen = () =>
      readdirSync(`/proc/${child.pid}/fd`).some((fd) => {
        try {
          const at = readlinkSync(`/proc/${child.pid}/fd/${fd}`);
          return at.startsWith(dir) && at.endsWith("(deleted)");
        } catch {
          // It has been closed since.
          return false;
        }
      });
    await until(isOpen, "the file");
    child.kill("SIGKILL");
    await child.exited;
    expect(readdirSync(dir).filter((name) => name.startsWith("foretoken-"))).toEqual([]);
  });
});
