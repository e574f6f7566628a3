// One worker on a stand-in for SGLang: what it asks for, and what it does at each fault and each command.

import { afterEach, expect, test } from "bun:test";
import {
  SglangStandIn,
  type SglangStandInOptions,
  sglangExperts,
} from "../../../../test/faults/stand-in/sglang-stand-in.ts";
import {
  standInCandidates,
  standInLogprob,
  standInResponse,
} from "../../../../test/faults/stand-in/tokens.ts";
import { samplingOf } from "../../../../test/suite/request-spec.ts";
import { benchOf, closeBenches, PROMPT, started } from "../../../../test/suite/vllm-bench.ts";
import { requestId, weightEpoch } from "../../../core/base/ids.ts";
import { ExpertRows } from "../../../core/request/expert-rows.ts";
import { drawKey, NO_SHAPING, type SamplingParams } from "../../../core/request/request.ts";
import type { EngineOperation } from "../../../core/rollout/operation.ts";
import { sglangSeed } from "./body.ts";

const CANARY = { kind: "canary", adapter: null } as const;
afterEach(closeBenches);

async function open(options: Partial<SglangStandInOptions> = {}) {
  const server = await started(SglangStandIn.start(options));
  return await benchOf(server, { limits: { failedAttemptsMax: 5 } });
}

const textOf = (id = 1, stopTokenIds: number[] = [], tokensMax = 40) => {
  const sample = sglangSeed(drawKey(1, "g", id));
  return standInResponse({ prompt: PROMPT, sample, tokensMax, stopTokenIds });
};

for (const hasStreamIntervals of [true, false]) {
  for (const isIncremental of [false, true]) {
    const form = hasStreamIntervals ? "" : ", without intervals of its own";
    const name = `${isIncremental ? "new tokens alone" : "all tokens"} in each event${form}`;
    test(`sglang: tokens, logprobs and alternatives, ${name}`, async () => {
      const bench = await open({ hasStreamIntervals, isIncremental });
      bench.run({ sampling: { topLogprobs: 2 } });
      await bench.until(() => bench.done() !== undefined);
      expect(bench.tokens()).toEqual(textOf());
      const pieces = bench.of("tokens");
      const logprobs = pieces.flatMap((event) => [...event.logprobs]);
      expect(logprobs).toEqual(textOf().map(standInLogprob).map(Math.fround));
      const top = pieces.flatMap((event) => [...(event.top?.tokens ?? [])]);
      expect(top).toEqual(
        textOf().flatMap((token) => standInCandidates(token).map((c) => c.token)),
      );
      expect(bench.done()).toMatchObject({ finish: "length", promptTokensCached: 0 });
      expect(bench.worker.found.capabilities).toMatchObject({
        endpoint: "sglang",
        model: "stand-in",
        slots: 64,
        kvTokens: 4096 * 16,
        kvBlockTokens: 16,
        contextTokens: 4096,
        hasStreamSettings: hasStreamIntervals,
      });
    });
  }
}

test("sglang: its own EOS ends a chunk of a response that is to go on after it", async () => {
  const bench = await open({});
  // 2 is the stand-in's EOS, drawn by this request's seed once.
  let id = 1;
  while (!textOf(id, [], 400).slice(0, 399).includes(2)) id += 1;
  const tokensMax = 400;
  const sampling = { stopTokenIds: [1001], tokensMax };
  bench.run({ id, chunkTokens: tokensMax, sampling });
  await bench.until(() => bench.done(id) !== undefined);
  expect(bench.done(id)).toMatchObject({ finish: null });
  const first = bench.tokens(id);
  expect(first).toEqual(textOf(id, [], tokensMax).slice(0, first.length));
  expect(first.at(-1)).toBe(2);
  // Where only the server knows what ends a text, that does.
  bench.run({ id: 9_999, chunkTokens: tokensMax, sampling: { tokensMax, temperature: 0 } });
  await bench.until(() => bench.done(9_999) !== undefined);
  expect(bench.done(9_999)).toMatchObject({ finish: "length" });
});

test("sglang: a request that is left is aborted by its whole name", async () => {
  const bench = await open();
  bench.server.engine.pause("keep");
  bench.run({ id: 1, chunkTokens: 4000, sampling: { tokensMax: 4000 } });
  await bench.until(() => bench.server.engine.waiting === 1);
  bench.worker.send([{ kind: "release", requestId: requestId(1) }]);
  await bench.until(() => bench.server.aborts.length === 1);
  const [, body] = bench.server.bodies;
  expect(bench.server.aborts).toEqual([String(Object(body).rid)]);
  expect(bench.server.aborts[0]).toMatch(/^ft-1-1-0-.*\.$/);
  expect(bench.server.engine.waiting).toBe(0);
});

test("sglang: no chunk of the next epoch runs before the cache is empty, and its key is another", async () => {
  const bench = await open();
  bench.run({ id: 1, chunkTokens: 4000, sampling: { tokensMax: 4000 } });
  await bench.until(() => bench.tokens().length > 0);
  bench.worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  bench.run({ id: 2 });
  await bench.until(() => bench.done(2) !== undefined);
  expect(bench.server.flushes).toBe(1);
  expect(bench.server.aborts).toHaveLength(1);
  expect(bench.tokens(2)).toEqual(textOf(2));
  const keys = bench.server.bodies.map((body) => body.extra_key);
  expect(keys).toEqual(["foretoken", "foretoken-w0", "foretoken-w1"]);
});

test("sglang: a cache that cannot be emptied fails the worker", async () => {
  const bench = await benchOf(await started(SglangStandIn.start()), {
    limits: { checkMsMax: 3_000 },
  });
  const { server } = bench;
  // Another client's, which never ends.
  server.engine.pause("keep");
  const other = await fetch(`${server.url}/generate`, {
    method: "POST",
    body: JSON.stringify({ input_ids: [1], sampling_params: {}, stream: true }),
  });
  while (server.engine.waiting === 0) await Bun.sleep(1);
  bench.worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
  const { message } = await bench.kind("failed");
  expect(message).toContain("may hold KV of older weights: /flush_cache: HTTP 400");
  await other.body?.cancel();
});

test("sglang: a restart is seen by the process's seed", async () => {
  const bench = await open();
  await bench.server.restart();
  expect(await bench.kind("failed")).toMatchObject({
    message: expect.stringMatching(/restarted|refused|ECONN/i),
  });
});

test("sglang: priorities count in its direction", async () => {
  const bench = await open({ hasPriorities: true });
  bench.run({ output: textOf().slice(0, 10) });
  await bench.until(() => bench.done() !== undefined);
  expect(bench.server.bodies.at(-1)?.priority).toBe(10);
});

test("sglang: operations become its own calls", async () => {
  const { server, worker } = await open();
  const ask = (about: "world_size" | "weights_version" | "is_asleep") =>
    worker.perform({ kind: "ask", about, settings: {} });
  const statusOf = async (operation: EngineOperation) => (await worker.perform(operation)).status;
  expect((await ask("world_size")).body).toEqual({ world_size: 2 });
  const load = { kind: "load", path: "/w/1", version: "v1", options: {} } as const;
  expect((await worker.perform(load)).body).toEqual({ results: [null] });
  expect(server.updates).toEqual([{ model_path: "/w/1", weight_version: "v1" }]);
  expect((await ask("weights_version")).body).toEqual({ weight_version: "v1" });
  const absent = await worker.perform({ ...load, path: "/absent" });
  expect(absent.status).toBe(400);
  expect(JSON.stringify(absent.body)).toContain("no such folder");
  expect(await statusOf({ kind: "rpc", body: { method: "other" } })).toBe(400);
  const drop = { kind: "drop_cache", cache: "prefix", settings: {} } as const;
  expect((await worker.perform(drop)).body).toEqual({ success: true });
  expect(await statusOf({ kind: "sleep", level: 1, mode: null })).toBe(200);
  expect((await ask("is_asleep")).body).toEqual({ is_sleeping: true });
  expect((await worker.perform(CANARY)).body).toEqual({ asleep: true });
  expect(await statusOf({ kind: "wake", tags: ["weights", "kv_cache"] })).toBe(200);
  expect((await ask("is_asleep")).body).toEqual({ is_sleeping: false });
  expect((await worker.perform(CANARY)).body).toMatchObject({ prompt: [0, 1, 2, 3] });
  expect(await statusOf({ kind: "update", step: "connect", body: {} })).toBe(404);
  const text = { kind: "text", form: "detokenize", body: '{"tokens":[104,105]}' } as const;
  expect((await worker.perform(text)).body).toEqual({ prompt: "hi" });
});

test("sglang: what its schema lacks is refused by name, and what it counts itself runs undivided", async () => {
  const { worker } = await open();
  const plain: SamplingParams = samplingOf({ seed: 1, tokensMax: 9 });
  const support = (more: Partial<SamplingParams>) => worker.supports({ ...plain, ...more });
  expect(support({})).toEqual({ kind: "divided" });
  expect(support({ shaping: { ...NO_SHAPING, topP: 0.9, tokensMin: 3 } }).kind).toBe("divided");
  expect(support({ shaping: { ...NO_SHAPING, repetitionPenalty: 1.1 } }).kind).toBe("whole");
  expect(support({ engineFields: { structured_outputs: { json: {} } } }).kind).toBe("whole");
  for (const field of ["prompt_logprobs", "bad_words", "allowed_token_ids", "extra_args"]) {
    expect(support({ engineFields: { [field]: [1] } })).toMatchObject({ kind: "refused", field });
  }
  const choice = support({ engineFields: { structured_outputs: { choice: ["a"] } } });
  expect(choice).toMatchObject({ kind: "refused", field: "structured_outputs" });
  expect(support({ engineFields: { return_routed_experts: true } })).toMatchObject({
    kind: "refused",
    field: "return_routed_experts",
  });
});

test("sglang: experts of chunks become one array", async () => {
  const bench = await open({ reportsExperts: true });
  const sampling = { engineFields: { return_routed_experts: true } };
  const rows = new ExpertRows(0);
  let output: number[] = [];
  for (const chunkTokens of [15, 25]) {
    bench.heard.length = 0;
    bench.run({ output, chunkTokens, sampling, expertsFrom: rows.end });
    await bench.until(() => bench.done() !== undefined);
    output = textOf().slice(0, output.length + chunkTokens);
    const done = bench.done();
    if (done?.kind !== "chunk_done" || done.experts === undefined) throw new Error("no experts");
    expect(rows.append(done.experts.from, done.experts.npy)).toBeNull();
  }
  const whole = Buffer.from(sglangExperts([...PROMPT, ...textOf()], 0), "base64");
  const array = rows.array();
  expect(Buffer.from(array?.bytes ?? []).equals(whole)).toBe(true);
  expect(array?.shape).toEqual([PROMPT.length + 40 - 1, 6]);
});

test("sglang: weights that make all tokens equally likely fail the canary, however events list them", async () => {
  for (const isIncremental of [false, true]) {
    const { server, worker } = await open({ isIncremental });
    expect(await worker.perform(CANARY)).toMatchObject({ status: 200 });
    server.isFlat = true;
    expect(await worker.perform(CANARY)).toMatchObject({ status: 500 });
  }
});

test("sglang: a hybrid model is divided once it was shown that its responses stay the same", async () => {
  const { worker } = await open({ architectures: ["Qwen3NextForCausalLM"] });
  expect(worker.found.capabilities).toMatchObject({
    isDivisible: true,
    warnings: [expect.any(String)],
  });
});
