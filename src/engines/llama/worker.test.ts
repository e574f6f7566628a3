// An embedded engine through its worker: what it is opened with, answers to control calls in vLLM's shapes, weights that
// change under a new epoch or not at all, and sleep that loses nothing.

import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { checkpoint, writeSafetensors } from "../../../test/llama/checkpoint.ts";
import { Ear, finished } from "../../../test/llama/ear.ts";
import {
  MODEL_PATH,
  newRequest,
  OTHER_MODEL_PATH,
  run,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { requestId, weightEpoch, workerId } from "../../core/base/ids.ts";
import type { EngineOperation } from "../../core/rollout/operation.ts";
import type { EngineWorker } from "../../core/rollout/worker.ts";
import { type LlamaModel, openLlamaModel } from "./open.ts";

setDefaultTimeout(180_000);

const CAPACITY = {
  workerId: workerId(0),
  slots: 4,
  kvTokens: 600,
  contextTokens: 256,
  epoch: weightEpoch(0),
};

const EPOCH_1 = weightEpoch(1);
const loadOf = (path: string) => ({ kind: "load", path, version: null, options: {} }) as const;
const partOf = (body: unknown) => ({ kind: "update", step: "part", body }) as const;
const sleepOf = (level: 1 | 2) => ({ kind: "sleep", level, mode: null }) as const;
const askOf = (about: "world_size" | "is_asleep" | "settings") =>
  ({ kind: "ask", about, settings: {} }) as const;
const wakeOf = (...tags: string[]) => ({ kind: "wake", tags }) as const;
const canaryOf = (adapter: string | null) => ({ kind: "canary", adapter }) as const;

describe.skipIf(skipReason !== null)("control", () => {
  const models: LlamaModel[] = [];
  const scratch = temporaryFolder("control");

  afterAll(() => {
    for (const model of models) model.close();
  });

  async function modelAt(path: string): Promise<LlamaModel> {
    let model = models.find(({ info }) => info.path === path);
    if (model === undefined) {
      model = await openLlamaModel({ path, deterministic: true });
      models.push(model);
    }
    return model;
  }

  async function openOne(path = MODEL_PATH): Promise<{ worker: EngineWorker; ear: Ear }> {
    const model = await modelAt(path);
    const worker = await model.openWorker(CAPACITY);
    return { worker, ear: new Ear(worker) };
  }

  async function tokensOf(worker: EngineWorker, ear: Ear, id: number): Promise<number[]> {
    worker.send([run(newRequest(id, { temperature: 0 }))]);
    await ear.until(() => ear.collector.response(id).finish !== null);
    return ear.collector.response(id).tokens;
  }

  test("figures: an engine whose requests are released, or that sleeps, ends with none running and no KV", async () => {
    const { worker, ear } = await openOne();
    const held = () => [ear.stats?.running, ear.stats?.waiting, ear.stats?.kvTokensUsed];
    const isHeld = () => (ear.stats?.kvTokensUsed ?? 0) > 0;
    const begun = async (id: number) => {
      const sampling = { temperature: 1, tokensMax: 200, stopTokenIds: [] };
      worker.send([run(newRequest(id, sampling))]);
      await ear.until(() => isHeld() || ear.collector.response(id).finish !== null);
      return isHeld();
    };
    let id = 1000;
    for (let released = 0; released < 3; id += 1) {
      if (await begun(id)) released += 1;
      worker.send([{ kind: "release", requestId: requestId(id) }]);
      await ear.until(() => held().every((count) => count === 0));
    }
    while (!(await begun(id))) id += 1;
    await worker.perform(sleepOf(1), weightEpoch(0));
    await ear.until(() => ear.stats?.running === 0 && !isHeld());
    await worker.close();
  });

  test("a registered group's deltas are drafted from: a repeated response is accepted", async () => {
    const { worker, ear } = await openOne();
    const spec = newRequest(0);
    const { tokens } = soloResponse(spec);
    const { groupId } = spec;
    worker.send([
      { kind: "register_group", groupId, prompt: spec.prompt },
      { kind: "delta", groupId, sampleIndex: 9, offset: 0, tokens: Int32Array.from(tokens) },
      { kind: "delta", groupId, sampleIndex: 8, offset: 5, tokens: Int32Array.of(1) },
      run(spec, { priority: "high" }),
    ]);
    await ear.until(() => finished(ear) === 1);
    expect(ear.collector.response(0).tokens).toEqual(tokens);
    expect(ear.collector.others).toContainEqual({
      kind: "gap",
      groupId,
      sampleIndex: 8,
      offset: 0,
    });
    await worker.close();
  });

  test("a process on portable kernels cannot open a model on the fastest ones", async () => {
    const opening = openLlamaModel({ path: MODEL_PATH, deterministic: false });
    await expect(opening).rejects.toMatchObject({ code: "invalid_config" });
  });

  test("what trainers ask before and around an update is answered in vLLM's shapes", async () => {
    const { worker } = await openOne();
    const step = (name: "connect" | "start" | "finish") =>
      ({ kind: "update", step: name, body: { init_info: { master_port: 1 } } }) as const;
    const answers: [EngineOperation, unknown][] = [
      [askOf("world_size"), { world_size: 1 }],
      [askOf("is_asleep"), { is_sleeping: false }],
      [{ kind: "drop_cache", cache: "prefix", settings: {} }, { success: true }],
      [step("connect"), {}],
      [step("start"), {}],
      [step("finish"), {}],
    ];
    for (const [operation, body] of answers) {
      expect(await worker.perform(operation, EPOCH_1)).toEqual({ status: 200, body });
    }
    expect((await worker.perform(askOf("settings"), EPOCH_1)).body).toMatchObject({
      vllm_config: {
        weight_transfer_config: expect.anything(),
        model_config: { dtype: "torch.float32", logprobs_mode: "processed_logprobs" },
      },
    });
    const adapter = { kind: "adapter", change: "load", body: {} } as const;
    expect(await worker.perform(adapter, EPOCH_1)).toEqual({
      status: 404,
      body: { error: { message: "Not Found", type: "Not Found", param: null, code: 404 } },
    });
    await worker.close();
    expect((await worker.perform(sleepOf(1), EPOCH_1)).status).toBe(503);
  });

  test("weights change on every worker under the next epoch, once; advance then does nothing", async () => {
    const opened = await Promise.all([openOne(), openOne()]);
    const part = partOf({ update_info: { weights_path: OTHER_MODEL_PATH } });
    const answers = opened.map(({ worker }) => worker.perform(part, EPOCH_1));
    expect(await Promise.all(answers)).toEqual([
      { status: 200, body: {} },
      { status: 200, body: {} },
    ]);
    for (const { worker, ear } of opened) {
      worker.send([{ kind: "advance", epoch: weightEpoch(1) }]);
      await tokensOf(worker, ear, 0);
      const since = ear.epochs.indexOf(weightEpoch(1));
      expect(new Set(ear.epochs.slice(since))).toEqual(new Set([weightEpoch(1)]));
      expect(ear.kinds().filter((kind) => kind === "advanced").length).toBe(1);
      await worker.close();
    }
  });

  test("a checkpoint of the loaded weights gives the same tokens, another one gives others", async () => {
    const { worker, ear } = await openOne(OTHER_MODEL_PATH);
    const before = await tokensOf(worker, ear, 0);
    const same = join(scratch, "model.safetensors");
    writeSafetensors(same, checkpoint(), "F32");
    const other = join(scratch, "other.safetensors");
    const changed = checkpoint();
    changed.get("model.layers.1.mlp.down_proj.weight")?.values.fill(0);
    writeSafetensors(other, changed, "F16");
    const temporary = () =>
      readdirSync(tmpdir()).filter((name) => name.startsWith("foretoken-weights-"));
    const held = temporary().length;
    expect(await worker.perform(loadOf(scratch), EPOCH_1)).toEqual({
      status: 200,
      body: { results: [null] },
    });
    expect(await tokensOf(worker, ear, 4)).toEqual(before);
    const next = await worker.perform(partOf({ weight_dir: other }), weightEpoch(2));
    expect(next.status).toBe(200);
    expect(await tokensOf(worker, ear, 8)).not.toEqual(before);
    expect(ear.epochs.at(-1)).toBe(weightEpoch(2));
    expect(temporary().length).toBe(held);
    await worker.close();
  });

  test("an update that fails leaves the old weights in service, and reports the reason", async () => {
    const { worker, ear } = await openOne();
    const short = join(scratch, "short.safetensors");
    const tensors = checkpoint();
    tensors.delete("model.norm.weight");
    writeSafetensors(short, tensors, "F16");
    for (const [body, reason] of [
      [{ update_info: { weights_path: short } }, "tensor model.norm.weight is missing"],
      [{ weight_dir: join(scratch, "absent") }, "absent"],
      [{ update_info: { names: ["lm_head.weight"] } }, "weights_path"],
      [null, "weights_path"],
    ] as const) {
      const answer = await worker.perform(partOf(body), EPOCH_1);
      expect(answer.status).toBe(400);
      expect(JSON.stringify(answer.body)).toContain(reason);
    }
    const rpc = { kind: "rpc", body: { method: "shutdown" } } as const;
    expect((await worker.perform(rpc, EPOCH_1)).status).toBe(400);
    const spec = newRequest(0);
    worker.send([run(spec)]);
    await ear.until(() => finished(ear) === 1);
    expect(ear.collector.response(0).tokens).toEqual(soloResponse(spec).tokens);
    expect(ear.epochs.at(-1)).toBe(weightEpoch(0));
    await worker.close();
  });

  test("weights that are not numbers, or all the same, are refused by name; the old ones serve on", async () => {
    const { worker, ear } = await openOne(OTHER_MODEL_PATH);
    const before = await tokensOf(worker, ear, 0);
    for (const [value, reason] of [
      [Number.NaN, "found nan value"],
      [Number.POSITIVE_INFINITY, "found inf value"],
      [0, "the logits of all tokens are 0"],
    ] as const) {
      const path = join(scratch, `bad-${value}.safetensors`);
      const tensors = checkpoint();
      for (const [name, { values }] of tensors) {
        if (value !== 0 || /norm/.test(name)) values.fill(value);
      }
      writeSafetensors(path, tensors, "F32");
      const answer = await worker.perform(loadOf(path), EPOCH_1);
      expect(JSON.stringify(answer)).toContain(reason);
      expect(answer.status).toBe(400);
    }
    expect((await worker.perform(canaryOf(null), EPOCH_1)).status).toBe(200);
    expect(await tokensOf(worker, ear, 4)).toEqual(before);
    expect(ear.epochs.at(-1)).toBe(weightEpoch(0));
    await worker.close();
  });

  test("a canary in the middle of responses changes none of them", async () => {
    const { worker, ear } = await openOne();
    const specs = [0, 1, 2, 3].map((id) => newRequest(id, { stopTokenIds: [], tokensMax: 60 }));
    worker.send(specs.map((spec) => run(spec)));
    await ear.until(() => ear.collector.response(0).tokens.length > 0);
    expect(await worker.perform(canaryOf(null), EPOCH_1)).toEqual({ status: 200, body: {} });
    await ear.until(() => finished(ear) === 4);
    for (const spec of specs) {
      const { tokens } = ear.collector.response(spec.requestId);
      expect(tokens).toEqual(soloResponse(spec).tokens);
    }
    const adapter = await worker.perform(canaryOf("policy"), EPOCH_1);
    expect(adapter.status).toBe(400);
    await worker.close();
  });

  test("sleep frees KV in mid-response, parked KV included; after wake_up nothing is lost", async () => {
    const { worker, ear } = await openOne();
    const spec = newRequest(0, { stopTokenIds: [], tokensMax: 150 });
    worker.send([run(newRequest(1), { chunkTokens: 2 })]);
    await ear.until(() => ear.collector.response(1).chunks === 1);
    worker.send([run(spec)]);
    await ear.until(() => ear.collector.response(0).tokens.length > 0);
    expect(await worker.perform(sleepOf(1), EPOCH_1)).toEqual({ status: 200, body: {} });
    expect((await worker.perform(askOf("is_asleep"), EPOCH_1)).body).toEqual({ is_sleeping: true });
    expect(ear.kinds()).toContain("evicted");
    expect(ear.stats).toMatchObject({ kvTokensUsed: 0, running: 0, waiting: 1 });
    worker.send([run(newRequest(2)), { kind: "export", requestId: requestId(1) }]);
    expect((await worker.perform(wakeOf("weights"), EPOCH_1)).status).toBe(200);
    expect((await worker.perform(askOf("is_asleep"), EPOCH_1)).body).toEqual({ is_sleeping: true });
    expect((await worker.perform(wakeOf(), EPOCH_1)).status).toBe(200);
    await ear.until(() => finished(ear) === 2);
    for (const one of [spec, newRequest(2)]) {
      const { tokens } = ear.collector.response(one.requestId);
      expect(tokens).toEqual(soloResponse(one).tokens);
    }
    expect(ear.collector.exported.get(1)).toBe(null);
    await worker.close();
  });

  test("weights change while asleep, and serve after wake_up", async () => {
    const { worker, ear } = await openOne(OTHER_MODEL_PATH);
    await worker.perform(sleepOf(2), EPOCH_1);
    expect(worker.weights).toMatch(/^f16-/);
    expect((await worker.perform(loadOf(MODEL_PATH), EPOCH_1)).status).toBe(200);
    expect(worker.weights).toMatch(/^q8_0-/);
    await worker.perform(wakeOf(), EPOCH_1);
    const spec = newRequest(0);
    worker.send([run(spec)]);
    await ear.until(() => finished(ear) === 1);
    expect(ear.collector.response(0).tokens).toEqual(soloResponse(spec).tokens);
    expect(ear.epochs.at(-1)).toBe(weightEpoch(1));
    await worker.close();
  });
});
