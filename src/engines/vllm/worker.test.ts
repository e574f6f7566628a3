// One worker on a stand-in: what it does at each fault, and at each command.

import { afterEach, expect, test } from "bun:test";
import type { FaultPlan } from "../../../test/faults/stand-in/faults.ts";
import { standInResponse } from "../../../test/faults/stand-in/tokens.ts";
import { type StandInOptions, VllmStandIn } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { benchOf, closeBenches, PROMPT, started } from "../../../test/suite/vllm-bench.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { VllmWorkerOptions } from "./open.ts";

const EPOCH_1 = weightEpoch(1);
const LIMITS = { silenceMsMax: 60_000, failedAttemptsMax: 5, checkMsMax: 5_000 };

afterEach(closeBenches);

const serve = (options: Partial<StandInOptions> = {}) => started(VllmStandIn.start(options));

const open = (server: VllmStandIn, options: Partial<VllmWorkerOptions> = {}) =>
  benchOf(server, { ...options, limits: { ...LIMITS, ...options.limits } });

const expected = (id = 1, tokensMax = 40, prompt = PROMPT) =>
  standInResponse({ prompt, sample: id, tokensMax, stopTokenIds: [] });

const extension = (name: string, body: unknown = null) =>
  ({ kind: "extension", name, body }) as const;

test("openVllmWorker: finds out what the server is", async () => {
  const server = await serve({ slots: 8, blocks: 101, blockSize: 16, contextTokens: 500 });
  const { worker, notices } = await open(server);
  expect(worker.name).toBe(server.url);
  // One block is vLLM's own.
  expect(worker.capacity).toEqual({
    slots: 8,
    ahead: 1,
    kvTokens: 100 * 16,
    kvBlockTokens: 16,
    contextTokens: 500,
    kvBytesPerToken: 0,
    sharesKv: false,
    sharesPrompts: true,
  });
  expect(worker.found.capabilities).toMatchObject({
    endpoint: "generate",
    model: "stand-in",
    hasPriorities: true,
    hasStreamSettings: true,
    hasSeeds: true,
  });
  expect(notices).toEqual([]);
});

test("openVllmWorker: takes what an old server offers, and reports what is missing", async () => {
  const server = await serve({
    generate: "disabled",
    hasPriorities: false,
    isDevMode: false,
    hasContinuousUsage: false,
    returnsTokenIds: false,
    spelling: "0.22",
  });
  const bench = await open(server);
  expect(bench.worker.found.capabilities).toMatchObject({
    endpoint: "completions",
    hasPriorities: false,
    hasStreamSettings: false,
    hasSeeds: true,
    slots: 256,
  });
  expect(bench.notices.map((notice) => notice.kind)).toEqual(["warning", "warning"]);
  bench.run();
  await bench.kind("chunk_done");
  expect(bench.tokens()).toEqual(expected());
});

test("openVllmWorker: no seed goes to a server that one may end", async () => {
  const server = await serve({ device: "cpu" });
  const bench = await open(server);
  expect(bench.notices).toMatchObject([{ kind: "warning" }]);
  bench.run();
  await bench.kind("chunk_done");
  expect(server.bodies.length).toBeGreaterThan(1);
  expect(JSON.stringify(server.bodies)).not.toContain('"seed"');
});

test("openVllmWorker: an error names the URL and the problem", async () => {
  const server = await serve({ apiKey: "secret" });
  const failure = async (options: Partial<VllmWorkerOptions>) =>
    await open(server, options).then(
      () => "opened",
      (error: Error) => error.message,
    );
  expect(await failure({})).toBe(`${server.url} refuses the API key (--worker-token)`);
  expect(await failure({ url: "localhost:1" })).toContain('"localhost:1" is not the URL');
  expect(await failure({ apiKey: "secret" })).toBe("opened");
  await server.stop();
  const message = await failure({});
  expect(message).toContain(`${server.url} is not healthy: /health:`);
});

test("run: a server that is silent for long but healthy is waited for", async () => {
  const server = await serve();
  const bench = await open(server);
  await bench.worker.perform(extension("pause?mode=keep"));
  bench.run();
  const polls = bench.of("stats").length;
  await bench.until(() => bench.of("stats").length >= polls + 10);
  await bench.worker.perform(extension("resume"));
  await bench.kind("chunk_done");
  expect(bench.tokens()).toEqual(expected());
  expect(bench.notices).toEqual([]);
});

test("run: a server that is silent and not healthy has failed, once", async () => {
  const server = await serve();
  const bench = await open(server);
  await bench.worker.perform(extension("pause?mode=keep"));
  server.isHealthy = false;
  bench.run();
  bench.run({ id: 2 });
  expect((await bench.kind("failed")).message).toBe(
    `${server.url}: it is silent and not healthy: HTTP 503`,
  );
  bench.run({ id: 3 });
  expect(bench.of("failed").length).toBe(1);
});

test("run: a server that makes tokens is alive, though a request is silent and its health fails", async () => {
  const faults: FaultPlan = (_, prompt) =>
    prompt[0] === 9 ? { kind: "mute", afterTokens: 1 } : null;
  const server = await serve({ faults, stepMs: 2 });
  const bench = await open(server, { limits: { stallMs: 150 } });
  server.isHealthy = false;
  bench.run({ prompt: [9] });
  bench.run({ id: 2, chunkTokens: 600, sampling: { tokensMax: 600 } });
  await bench.until(() => bench.done(2) !== undefined || bench.of("failed").length > 0);
  expect(bench.of("failed")).toEqual([]);
  // Once it makes none, it has failed.
  await bench.kind("failed");
  expect(bench.tokens(2)).toEqual(expected(2, 600));
});

test("run: a request that always breaks the server's answer is refused, the worker continues", async () => {
  const faults: FaultPlan = (_, prompt) =>
    prompt[0] === 9 ? { kind: "broken", afterTokens: 0 } : null;
  const bench = await open(await serve({ faults }));
  bench.run({ id: 1, prompt: [9] });
  expect((await bench.kind("chunk_done")).finish).toBe("abort");
  bench.run({ id: 2 });
  await bench.until(() => bench.of("chunk_done").length === 2);
  expect(bench.tokens(2)).toEqual(expected(2));
});

test("run: a server that was broken for a while is no reason to refuse a request", async () => {
  let left = 1_000;
  // The probe's request, then every one until the worker asks for its proof.
  const faults: FaultPlan = (arrival, prompt) => {
    if (arrival === 0) return null;
    if (prompt.length === 2) left = 0;
    return left > 0 ? { kind: "broken", afterTokens: 0 } : null;
  };
  const bench = await open(await serve({ faults }));
  bench.run();
  expect((await bench.kind("chunk_done")).finish).toBe("length");
  expect(bench.tokens()).toEqual(expected());
});

test("run: a server whose queue is full for long is waited for, and nothing is wrong with it", async () => {
  let isFull = true;
  // The probe's request comes through.
  const faults: FaultPlan = (arrival) =>
    arrival > 0 && isFull ? { kind: "full", afterTokens: 0 } : null;
  const server = await serve({ faults });
  const bench = await open(server, { limits: { retryMs: 1, retryMsMax: 2 } });
  bench.run();
  await bench.until(() => (server.shown.get("full") ?? 0) > 4 * LIMITS.failedAttemptsMax);
  const canary = await bench.worker.perform({ kind: "canary", adapter: null });
  expect([canary.status, bench.of("failed"), bench.of("chunk_done")]).toEqual([503, [], []]);
  isFull = false;
  expect((await bench.kind("chunk_done")).finish).toBe("length");
  expect(bench.tokens()).toEqual(expected());
});

test("run: a server that is full for longer than it may be silent refuses the request", async () => {
  const faults: FaultPlan = (arrival) => (arrival > 0 ? { kind: "full", afterTokens: 0 } : null);
  const limits = { retryMs: 1, retryMsMax: 2, silenceMsMax: 20 };
  const bench = await open(await serve({ faults }), { limits });
  bench.run();
  const { finish, refusal } = await bench.kind("chunk_done");
  expect([finish, refusal?.status]).toEqual(["abort", 502]);
  expect(refusal?.message).toContain("busy");
  expect(bench.of("failed")).toEqual([]);
});

test("openVllmWorker: a full server is no server without token ids", async () => {
  const faults: FaultPlan = (arrival) => (arrival < 1 ? { kind: "full", afterTokens: 0 } : null);
  const server = await serve({ faults });
  await expect(open(server)).rejects.toThrow(`${server.url} is full: The engine is currently busy`);
});

test("openVllmWorker: a server that accepts drafts by a lossy rule is refused by name", async () => {
  const opened = async (method: string) =>
    await open(
      await serve({
        routes: (path) => {
          const config = { speculative_config: { rejection_sample_method: method } };
          return path === "/server_info" ? { status: 200, body: { vllm_config: config } } : null;
        },
      }),
    ).then(
      () => "opened",
      (error: Error) => error.message,
    );
  for (const method of ["fly", "synthetic"]) {
    expect(await opened(method)).toContain(`by rejection_sample_method ${method}`);
  }
  for (const method of ["standard", "block"]) expect(await opened(method)).toBe("opened");
});

test("run: a response ends where the server's context does", async () => {
  for (const generate of ["enabled", "disabled"] as const) {
    const bench = await open(await serve({ generate, contextTokens: 30 }));
    bench.run();
    expect((await bench.kind("chunk_done")).finish).toBe("length");
    expect(bench.tokens()).toEqual(expected(1, 26));
  }
});

test("run: a server that refuses connections is reported at once, and has failed soon, idle or not", async () => {
  for (const isIdle of [true, false]) {
    const server = await serve();
    const told: (string | null)[] = [];
    const limits = { goneMsMax: 50, retryMs: 1_000, failedAttemptsMax: 1_000 };
    const bench = await open(server, { limits, reach: (lost) => told.push(lost) });
    await server.stop();
    if (!isIdle) bench.run();
    await bench.kind("failed");
    expect(told).toEqual([expect.stringContaining("/metrics: ")]);
  }
});

test("run: a server that restarts at once has failed, and is asked nothing before that is known", async () => {
  const faults: FaultPlan = (_, prompt) =>
    prompt[0] === 9 ? { kind: "restart", afterTokens: 10 } : null;
  for (let trial = 0; trial < 10; trial += 1) {
    const server = await serve({ faults, downMs: 0 });
    // The look at the metrics that is under way when it ends says nothing of what comes after.
    const bench = await open(server, { limits: { failedAttemptsMax: 200, pollMs: 1 } });
    bench.run({ prompt: [9] });
    expect((await bench.kind("failed")).message).toBe(`${server.url}: it has restarted`);
    // The probe's prompt, and this one once.
    expect(server.bodies.length).toBe(2);
    expect(server.restarts).toBe(1);
  }
});

test("run: a server that restarts has its first weights again: after an update it has failed", async () => {
  const server = await serve();
  const bench = await open(server, { limits: { failedAttemptsMax: 200 } });
  bench.run({ id: 1 });
  await bench.kind("chunk_done");
  bench.worker.send([{ kind: "advance", epoch: EPOCH_1 }]);
  await server.restart();
  expect((await bench.kind("failed")).message).toContain("it has restarted, with the weights");
  bench.run({ id: 2 });
  expect(bench.tokens(2)).toEqual([]);
});

test("run: a server that restarted while nothing ran there is asked nothing before its process is known", async () => {
  const server = await serve({ downMs: 0 });
  // No poll comes by itself.
  const bench = await open(server, {
    limits: { pollMs: 60_000, stallMs: 60_000, restartMsMin: 0 },
  });
  bench.run({ id: 1 });
  await bench.kind("chunk_done");
  bench.worker.send([{ kind: "advance", epoch: EPOCH_1 }]);
  await server.restart();
  const asked = server.bodies.length;
  bench.run({ id: 2 });
  expect((await bench.kind("failed")).message).toContain("it has restarted, with the weights");
  expect([server.bodies.length, bench.tokens(2)]).toEqual([asked, []]);
});

test("stats: a continuation's prompt is recomputed but for what the prefix cache holds", async () => {
  const server = await serve({ blockSize: 4 });
  const bench = await open(server);
  const stats = () => bench.of("stats").at(-1)?.stats;
  bench.run({ chunkTokens: 20 });
  await bench.kind("chunk_done");
  expect(stats()).toMatchObject({ outputTokens: 20, prefillTokens: 4, recomputedTokens: 0 });
  bench.run({ output: expected(1, 20), chunkTokens: 20 });
  await bench.until(() => bench.of("chunk_done").length === 2);
  // 24 tokens; the last is always computed, so 5 whole blocks of 4 can be found.
  expect(stats()).toMatchObject({ outputTokens: 40, prefillTokens: 8, recomputedTokens: 3 });
  server.engine.clearCache();
  bench.run({ id: 1, output: expected(1, 20), chunkTokens: 1 });
  await bench.until(() => bench.of("chunk_done").length === 3);
  expect(stats()).toMatchObject({ prefillTokens: 32, recomputedTokens: 26 });
  await bench.until(() => (stats()?.steps ?? 0) >= 41);
  expect(stats()?.preemptions).toBe(0);
});

test("operations: become vLLM's routes, and the answers are passed on", async () => {
  const server = await serve();
  const { worker } = await open(server);
  expect(await worker.perform(extension("update_weight_version", { new_version: "w7" }))).toEqual({
    status: 200,
    body: { weight_version: "w7" },
  });
  const ask = { kind: "ask", about: "weights_version", settings: {} } as const;
  expect(await worker.perform(ask)).toMatchObject({ status: 200 });
  const body = { lora_name: "policy", lora_path: "/lora/1" };
  expect(await worker.perform({ kind: "adapter", change: "load", body })).toEqual({
    status: 200,
    body: "Success: LoRA adapter 'policy' added successfully.",
  });
  const sleep = { kind: "sleep", level: 1, mode: null } as const;
  expect(await worker.perform(sleep)).toEqual({ status: 200, body: null });
  await server.stop();
  const answer = await worker.perform({ kind: "wake", tags: ["weights", "kv_cache"] });
  expect(answer.status).toBe(502);
  expect(JSON.stringify(answer.body)).toContain(server.url);
});

test("run: fields that are nested too deep to be written end that request alone", async () => {
  const bench = await open(await serve());
  let deep: unknown = 1;
  for (let i = 0; i < 200_000; i += 1) deep = [deep];
  bench.run({ id: 1, sampling: { engineFields: { structured_outputs: { json: deep } } } });
  bench.run({ id: 2 });
  await bench.until(() => bench.of("chunk_done").length === 2);
  const [refused] = bench.of("chunk_done").filter(({ requestId }) => requestId === 1);
  expect(refused?.refusal).toEqual({
    status: 400,
    message: "its sampling fields cannot be written as JSON",
  });
  expect(bench.tokens(2)).toHaveLength(40);
});
