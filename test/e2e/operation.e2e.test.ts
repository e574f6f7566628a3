// What an operator sees of a sidecar: ids of requests, a line for whatever went wrong or was ordered, one for each
// iteration; and an end within its time, whoever does not read. Real processes over stand-ins for vLLM.

import { expect, onTestFinished, setDefaultTimeout, test } from "bun:test";
import net from "node:net";
import { join } from "node:path";
import { until } from "../faults/http-client.ts";
import { ToolProcess } from "../faults/process.ts";
import { VllmStandIn } from "../faults/stand-in/vllm-stand-in.ts";
import { DEAD_PROXY } from "../suite/dead-proxy.ts";
import { ended, ROOT, start } from "./tool.ts";

setDefaultTimeout(180_000);

const TOKENIZER = join(ROOT, "test", "fixtures", "foretoken-3m-hf");

async function serve(...args: string[]): Promise<ToolProcess> {
  const standIn = await VllmStandIn.start({ contextTokens: 65_536, blocks: 65_536 });
  onTestFinished(() => standIn.stop());
  const fixed = ["--port", "0", "--tokenizer", TOKENIZER, "--worker", standIn.url];
  const proc = await ToolProcess.listening("serve", ...fixed, ...args);
  onTestFinished(() => proc.kill());
  return proc;
}

/** The line about it, as an object. */
async function lineOf(
  proc: ToolProcess,
  event: string,
  about: object,
): Promise<Record<string, unknown>> {
  const find = () => {
    for (const text of proc.lines) {
      if (!text.startsWith("{")) continue;
      const line = JSON.parse(text) as Record<string, unknown>;
      const isIt = Object.entries(about).every(([name, value]) => line[name] === value);
      if (line.event === event && isIt) return line;
    }
    return null;
  };
  await until(
    () => find() !== null,
    () => `${event} ${JSON.stringify(about)} in ${proc.text}`,
  );
  return find() ?? {};
}

const PROMPT = { prompt: [1, 2, 3], max_tokens: 8 };

test("status: a server is asked without the environment's proxy, and one that is not there is named", async () => {
  const proc = await serve();
  const { status, stdout } = await ended(start(["status", `${proc.url}/`], DEAD_PROXY));
  expect([status, stdout]).toEqual([0, expect.stringContaining("waits for")]);
  const dead = await ended(start(["status", "http://127.0.0.1:9"]));
  expect([dead.status, dead.stderr]).toEqual([1, expect.stringContaining("http://127.0.0.1:9")]);
});

test("log: every request has an id, and one that is refused a line with the reason", async () => {
  const proc = await serve("--log", "json");
  const good = await proc.http.post("/v1/completions", PROMPT, { "x-request-id": "mine-7" });
  expect([good.status, good.headers.get("x-request-id")]).toEqual([200, "mine-7"]);
  const odd = await proc.http.post("/v1/completions", PROMPT, { "x-request-id": "a b\tc" });
  expect(odd.headers.get("x-request-id")).toMatch(/^[\da-f-]{36}$/);
  const bad = await proc.http.post("/v1/completions", { ...PROMPT, max_tokens: -1 });
  const id = bad.headers.get("x-request-id");
  expect(await lineOf(proc, "answered", { id })).toMatchObject({
    level: "info",
    status: 400,
    path: "/v1/completions",
    reason: expect.stringContaining("max_tokens is -1"),
  });
  // What went well is told at --log text:debug alone.
  expect(proc.line(/mine-7/)).toBeNull();
});

test("log: control calls and failed updates have a line with outcome and reason; an iteration has one", async () => {
  const proc = await serve("--log", "json");
  for (let i = 0; i < 10; i += 1) await proc.http.post("/v1/completions", { ...PROMPT, n: 2 });
  await proc.http.post("/pause?mode=wait", {});
  expect(await lineOf(proc, "control", { path: "/pause" })).toMatchObject({
    level: "info",
    status: 200,
    asked: "mode=wait",
    ms: expect.any(Number),
  });
  const failed = await proc.http.post("/update_weights", { update_info: {} });
  expect(failed.status).toBeGreaterThanOrEqual(400);
  expect(await lineOf(proc, "control", { path: "/update_weights" })).toMatchObject({
    level: "warn",
    reason: expect.stringContaining("workers failed: http://127.0.0.1:"),
  });
  const rpc = { method: "reload_weights", kwargs: { weights_path: "/tmp" } };
  expect((await proc.http.post("/collective_rpc", rpc)).status).toBe(200);
  await lineOf(proc, "control", { path: "/collective_rpc", asked: "reload_weights", status: 200 });
  expect(await lineOf(proc, "iteration", { weight_epoch: 0 })).toMatchObject({
    requests: 20,
    tokens: 160,
    failures: 0,
    unfinished: 0,
    seconds: expect.any(Number),
    tail_s: expect.any(Number),
    preemptions: 0,
    restarts: 0,
  });
});

test("end: a rollout that nobody reads holds it up for --drain-s at most, and is named", async () => {
  const proc = await serve("--drain-s", "3");
  const socket = net.connect(Number(proc.http.url.port), "127.0.0.1");
  socket.on("error", () => {});
  socket.pause();
  const text = JSON.stringify({
    groups: Array.from({ length: 64 }, (_, i) => ({ id: `g${i}`, token_ids: [i, 2], n: 64 })),
    sampling_params: { max_tokens: 200, ignore_eos: true },
  });
  socket.write(
    `POST /v1/rollouts HTTP/1.1\r\nHost: 127.0.0.1:${proc.http.url.port}\r\nX-Request-Id: deaf-1\r\nContent-Length: ${text.length}\r\n\r\n${text}`,
  );
  const finished = async () => {
    const { text } = await proc.http.get("/metrics");
    const counts = [...text.matchAll(/^vllm:request_success_total\{.*\} (\d+)$/gm)];
    return counts.reduce((sum, [, count]) => sum + Number(count), 0);
  };
  await until(async () => (await finished()) === 64 * 64, "the end of all responses");
  proc.signal("SIGTERM");
  const status = await proc.exited;
  expect(status).toBe(1);
  expect(proc.line(/waiting_for_readers/)).not.toBeNull();
  expect(
    proc.line(/not_read .*path=\/v1\/rollouts id=deaf-1 client=127\.0\.0\.1:\d+ /),
  ).not.toBeNull();
  expect(proc.line(/stopped outcome=time_up/)).not.toBeNull();
  socket.destroy();
});

test("end: followers of /v1/stream that do not read delay no shutdown beyond the limit", async () => {
  const proc = await serve("--drain-s", "20");
  const socket = net.connect(Number(proc.http.url.port), "127.0.0.1");
  socket.on("error", () => {});
  socket.write(
    `GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:${proc.http.url.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`,
  );
  await new Promise((resolve) => socket.once("data", resolve));
  socket.pause();
  proc.signal("SIGTERM");
  const status = await proc.exited;
  expect(status).toBe(0);
  socket.destroy();
});
