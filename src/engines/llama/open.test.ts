// What has been loaded stays as it was read, whatever becomes of its file; equal weights are one, and have one
// name; other weights have another.

import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { checkpoint, valueAt, writeSafetensors } from "../../../test/llama/checkpoint.ts";
import { Ear, finished } from "../../../test/llama/ear.ts";
import {
  MODEL_PATH,
  newRequest,
  OTHER_MODEL_PATH,
  run,
  skipReason,
  soloResponse,
} from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder, written } from "../../../test/suite/temporary-folder.ts";
import { weightEpoch, workerId } from "../../core/base/ids.ts";
import { readGgufHead } from "./gguf.ts";
import { type LlamaModel, openLlamaModel } from "./open.ts";

setDefaultTimeout(180_000);

const CAPACITY = { workerId: workerId(0), slots: 2, kvTokens: 512, contextTokens: 256 };
const EPOCH = weightEpoch(1);

describe.skipIf(skipReason !== null)("weights", () => {
  const scratch = temporaryFolder("store");
  let model: LlamaModel;

  beforeAll(async () => {
    model = await openLlamaModel({ path: OTHER_MODEL_PATH, deterministic: true });
  });
  afterAll(() => model.close());

  async function idOf(path: string): Promise<string> {
    const held = await model.acquire(path, EPOCH);
    held.release();
    return held.weights.id;
  }

  test("a file that is rewritten in place, then cut short, changes no token of those who serve it", async () => {
    const path = join(scratch, "served.gguf");
    copyFileSync(MODEL_PATH, path);
    const served = await openLlamaModel({ path, deterministic: true });
    const tokens = async () => {
      const worker = await served.openWorker({ ...CAPACITY, epoch: weightEpoch(0) });
      const ear = new Ear(worker);
      const spec = newRequest(0);
      worker.send([run(spec)]);
      await ear.until(() => finished(ear) === 1);
      await worker.close();
      return ear.collector.response(spec.requestId).tokens;
    };
    const expected = soloResponse(newRequest(0)).tokens;
    expect(await tokens()).toEqual(expected);
    const { dataOffset } = readGgufHead(path);
    const bytes = readFileSync(path);
    writeFileSync(path, bytes.fill(0x11, dataOffset));
    expect(await tokens()).toEqual(expected);
    truncateSync(path, 100);
    expect(await tokens()).toEqual(expected);
    served.close();
  });

  test("engines that open at once read a file once; later ones read its content then", async () => {
    const path = join(scratch, "updated.gguf");
    copyFileSync(MODEL_PATH, path);
    const early = await Promise.all([1, 2].map(() => model.acquire(path, EPOCH)));
    expect(new Set(early.map(({ weights }) => weights.pointer)).size).toBe(1);
    copyFileSync(OTHER_MODEL_PATH, path);
    const late = await model.acquire(path, EPOCH);
    // The model's own file, loaded already.
    expect(late.weights).toBe(model.first.weights);
    expect(early[0]?.weights.id).not.toBe(late.weights.id);
    for (const lease of [...early, late]) lease.release();
  });

  test("a name is of precision and bytes: who made the file, and when, means nothing", async () => {
    const first = model.first.weights.id;
    expect(first).toMatch(/^f16-[0-9a-f]{16}$/);
    expect(await idOf(MODEL_PATH)).toMatch(/^q8_0-[0-9a-f]{16}$/);
    const bytes = readFileSync(OTHER_MODEL_PATH);
    const { tensors } = readGgufHead(OTHER_MODEL_PATH);
    const renamed = Buffer.from(bytes);
    renamed.write("somebody", valueAt(bytes, "general.name") + 8);
    expect(await idOf(written(scratch, "renamed.gguf", renamed))).toBe(first);
    const turned = Buffer.from(bytes);
    turned.writeFloatLE(20_000, valueAt(bytes, "qwen3.rope.freq_base"));
    expect(await idOf(written(scratch, "turned.gguf", turned))).not.toBe(first);
    for (const tensor of [tensors[0], tensors.at(-1)]) {
      const flipped = Buffer.from(bytes);
      const at = (tensor?.offset as number) + 1;
      flipped[at] = (flipped[at] as number) ^ 1;
      expect(await idOf(written(scratch, "flipped.gguf", flipped))).not.toBe(first);
    }
  });

  test("a checkpoint of the loaded weights has their name; the model's own file may be gone by then", async () => {
    const path = join(scratch, "base.gguf");
    copyFileSync(OTHER_MODEL_PATH, path);
    const opened = await openLlamaModel({ path, deterministic: true });
    rmSync(path);
    const source = join(scratch, "model.safetensors");
    writeSafetensors(source, checkpoint(), "F32");
    const held = await opened.acquire(scratch, EPOCH);
    expect(held.weights).toBe(opened.first.weights);
    held.release();
    opened.close();
    await expect(opened.acquire(source, EPOCH)).rejects.toMatchObject({ code: "worker_failed" });
  });
});
