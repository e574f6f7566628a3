// The worker in its thread: the life of a request through the port, weight epochs, and every way to fail.

import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Ear, finished } from "../../../test/llama/ear.ts";
import {
  MODEL_PATH,
  newRequest,
  run,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { Worker } from "../../core/rollout/worker.ts";
import { type LlamaModel, openLlamaModel } from "./open.ts";

// Portable kernels are slow, and the machine may be busy.
setDefaultTimeout(180_000);

const CAPACITY = { slots: 4, kvTokens: 600, contextTokens: 256, epoch: weightEpoch(0) };

describe.skipIf(skipReason !== null)("worker", () => {
  let model: LlamaModel | null = null;

  async function open(workers: number): Promise<Worker[]> {
    model ??= await openLlamaModel({ path: MODEL_PATH, deterministic: true });
    return await model.openWorkers({ ...CAPACITY, workers });
  }

  async function openOne(): Promise<{ worker: Worker; ear: Ear }> {
    const [worker] = await open(1);
    if (worker === undefined) throw new Error("no worker");
    return { worker, ear: new Ear(worker) };
  }

  const scratch = temporaryFolder("llama");

  afterAll(() => {
    model?.close();
  });

  test("openLlamaModel: describes the model", async () => {
    model ??= await openLlamaModel({ path: MODEL_PATH, deterministic: true });
    expect(model).toMatchObject({
      deterministic: true,
      vocabularySize: 1376,
      contextTokens: 4096,
      eosTokenId: 1359,
      stopTokenIds: [1359],
    });
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

  test("a capacity the engine cannot have is refused at open", async () => {
    await open(0);
    const opening = (model as LlamaModel).openWorkers({ ...CAPACITY, workers: 2, slots: 0 });
    await expect(opening).rejects.toMatchObject({ code: "invalid_config" });
  });

  test("a file that is absent, foreign or cut short is model_unreadable, by name", async () => {
    const foreign = join(scratch, "foreign.gguf");
    writeFileSync(foreign, "no model");
    const cut = join(scratch, "cut.gguf");
    writeFileSync(cut, readFileSync(MODEL_PATH).subarray(0, 400_000));
    const header = join(scratch, "header.gguf");
    writeFileSync(header, readFileSync(MODEL_PATH).subarray(0, 6));
    for (const path of [join(scratch, "absent.gguf"), scratch, foreign, cut, header]) {
      const opening = openLlamaModel({ path, deterministic: true });
      await expect(opening).rejects.toMatchObject({
        code: "model_unreadable",
        message: expect.stringContaining(path),
      });
    }
  });

  test("a process on portable kernels cannot open a model on the fastest ones", async () => {
    const opening = openLlamaModel({ path: MODEL_PATH, deterministic: false });
    await expect(opening).rejects.toMatchObject({ code: "invalid_config" });
  });
});
