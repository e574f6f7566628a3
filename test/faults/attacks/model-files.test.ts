// Attacks engines by way of the files that they load: GGUF files with flipped bits, cut short, with foreign
// numbers in their heads, rewritten while they are read. Each file either loads and serves, or is refused by an
// error that names it; this process, which loads them all, lives on.

import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { AppError } from "../../../src/core/base/errors.ts";
import { weightEpoch, workerId } from "../../../src/core/base/ids.ts";
import type { ControlAnswer } from "../../../src/core/rollout/operation.ts";
import type { EngineWorker } from "../../../src/core/rollout/worker.ts";
import { readGgufHead } from "../../../src/engines/llama/gguf.ts";
import { type LlamaModel, openLlamaModel } from "../../../src/engines/llama/open.ts";
import { valueAt } from "../../llama/checkpoint.ts";
import { Ear, finished } from "../../llama/ear.ts";
import { MODEL_PATH, newRequest, run, skipReason } from "../../llama/engine-fixture.ts";
import { temporaryFolder } from "../../suite/temporary-folder.ts";
import { editedBytes } from "../fuzz/variations.ts";
import { rounds } from "./scale.ts";
import { Dice } from "./settings.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 42);
const CAPACITY = { workerId: workerId(0), slots: 2, kvTokens: 512, contextTokens: 128 };

const NUMBERS = [0n, 1n, 2n, 7n, 255n, 0x7fffffffn, 0xffffffffn, 2n ** 32n].concat([
  ...[2n ** 63n - 1n, 2n ** 64n - 1n],
]);

const HEAD = readGgufHead(MODEL_PATH);
const SCALARS = [...HEAD.values].flatMap(([key, { bytes }]) => (bytes.length === 4 ? [key] : []));
/** Offset of the tensors' names, dimensions, types and offsets. */
const TABLE_FROM = readFileSync(MODEL_PATH).indexOf(HEAD.tensors[0]?.name ?? "") - 8;

type Damage = (bytes: Buffer, dice: Dice) => Uint8Array;

/** Bits, numbers and parts of the bytes between the two places are edited. */
const editing =
  (from: number, to: number): Damage =>
  (bytes, dice) => {
    const edited = editedBytes(bytes.subarray(from, to), bytes.subarray(0, TABLE_FROM), dice);
    return Buffer.concat([bytes.subarray(0, from), edited, bytes.subarray(to)]);
  };

const DAMAGES: Readonly<Record<string, Damage>> = {
  "an edit of the head": editing(0, TABLE_FROM),
  "an edit of the tensors' table": editing(TABLE_FROM, HEAD.dataOffset),
  "an edit of the tensors": (bytes, dice) => editing(HEAD.dataOffset, bytes.length)(bytes, dice),
  "cut short": (bytes, dice) => bytes.subarray(0, dice.below(bytes.length)),
  "its head cut short": (bytes, dice) => bytes.subarray(0, dice.below(HEAD.dataOffset)),
  "a foreign count": (bytes, dice) => {
    bytes.writeBigUInt64LE(dice.one(NUMBERS), dice.one([8, 16]));
    return bytes;
  },
  "another value of a field": (bytes, dice) => {
    const key = dice.one(SCALARS);
    const value = dice.below(2) === 0 ? dice.one(NUMBERS) : BigInt(dice.below(5000));
    bytes.writeUInt32LE(Number(value & 0xffffffffn), valueAt(bytes, key));
    return bytes;
  },
  "a page of noise": (bytes, dice) => {
    const at = dice.below(bytes.length - 4096);
    for (let i = 0; i < 4096; i += 1) bytes[at + i] = dice.below(256);
    return bytes;
  },
};

const scratch = temporaryFolder("model-files");

/** A model that loads also serves, or its engine says why not. */
async function tryModel(path: string): Promise<void> {
  let model: LlamaModel;
  try {
    model = await openLlamaModel({ path, deterministic: true });
  } catch (error) {
    expect(error).toBeInstanceOf(AppError);
    const { code, message } = error as AppError;
    expect({ code, message }).toEqual({
      code: "model_unreadable",
      message: expect.stringContaining(path),
    });
    return;
  }
  try {
    const worker = await model.openWorker({ ...CAPACITY, epoch: weightEpoch(0) });
    const ear = new Ear(worker);
    worker.send([run(newRequest(0, { tokensMax: 8 }))]);
    await ear.until(() => finished(ear) === 1 || ear.kinds().includes("failed"));
    await worker.close();
  } catch (error) {
    expect(error).toBeInstanceOf(AppError);
  } finally {
    model.close();
  }
}

describe.skipIf(skipReason !== null)("model files", () => {
  const original = readFileSync(MODEL_PATH);

  test("a damaged model file is refused by an error that names it, or serves", async () => {
    const dice = new Dice(SEED);
    for (let round = 0; round < rounds(11, 440); round += 1) {
      const kinds = Object.keys(DAMAGES);
      const kind = kinds[round % kinds.length] as string;
      const path = join(scratch, `${round}.gguf`);
      writeFileSync(path, (DAMAGES[kind] as Damage)(Buffer.from(original), dice));
      try {
        await tryModel(path);
      } catch (error) {
        console.log(`SEED=${SEED}: round ${round}: ${kind}`);
        throw error;
      }
      rmSync(path);
    }
  });

  test("a file that is rewritten in place again and again: an update takes one whole version, or none", async () => {
    const { model, worker } = await serving();
    const versions = [original, Buffer.from(original)];
    versions[1]?.fill(0x22, HEAD.dataOffset, HEAD.dataOffset + 300_000);
    const names = new Set<unknown>();
    const path = join(scratch, "moving.gguf");
    for (const [round, bytes] of versions.entries()) {
      writeFileSync(path, bytes);
      expect((await update(worker, path, round + 1)).status).toBe(200);
      names.add(worker.weights);
    }
    expect(names.size).toBe(2);
    const writer = Bun.spawn(
      [process.execPath, "-e", REWRITER, path, ...versions.map((bytes, i) => version(i, bytes))],
      { stdout: "ignore" },
    );
    for (let round = 0; round < rounds(5, 100); round += 1) {
      const { status, body } = await update(worker, path, round + 3);
      if (status !== 200) expect(JSON.stringify(body)).toContain(path);
      expect([...names]).toContain(worker.weights);
    }
    writer.kill();
    await writer.exited;
    await worker.close();
    model.close();
  });
});

/** Writes each version over the file, piece by piece, for ever. */
const REWRITER = `
  const { openSync, readFileSync, writeSync } = require("node:fs");
  const [path, ...versions] = process.argv.slice(1);
  const held = versions.map((one) => readFileSync(one));
  const file = openSync(path, "r+");
  for (let i = 0; ; i += 1) {
    const bytes = held[i % held.length];
    for (let at = 0; at < bytes.length; at += 65536) writeSync(file, bytes, at, Math.min(65536, bytes.length - at), at);
    Bun.sleepSync(Math.random() * 20);
  }
`;

function version(index: number, bytes: Buffer): string {
  const path = join(scratch, `version-${index}`);
  writeFileSync(path, bytes);
  return path;
}

async function serving(): Promise<{ model: LlamaModel; worker: EngineWorker }> {
  const model = await openLlamaModel({ path: MODEL_PATH, deterministic: true });
  const worker = await model.openWorker({ ...CAPACITY, epoch: weightEpoch(0) });
  return { model, worker };
}

function update(worker: EngineWorker, path: string, epoch: number): Promise<ControlAnswer> {
  const operation = { kind: "load", path, version: null, options: {} } as const;
  return worker.perform(operation, weightEpoch(epoch));
}
