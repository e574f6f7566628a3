// Attacks engines by way of the files that they load: GGUF files with flipped bits, cut short, with foreign
// numbers in their heads, rewritten and cut while they serve; checkpoints that change while they are read. Each
// file either loads and serves, or is refused by an error that names it; this process, which loads them all,
// lives on.

import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AppError } from "../../src/base/errors.ts";
import { mix32 } from "../../src/base/hash.ts";
import { weightEpoch } from "../../src/base/ids.ts";
import { readGgufHead } from "../../src/worker/llama/gguf.ts";
import { type LlamaModel, openLlamaModel } from "../../src/worker/llama/open.ts";
import { Ear, finished } from "../llama/ear.ts";
import { MODEL_PATH, newRequest, run, skipReason } from "../llama/engine-fixture.ts";
import { rounds } from "./scale.ts";

setDefaultTimeout(600_000);

const SEED = Number(process.env.SEED ?? 42);
const CAPACITY = { workers: 1, slots: 2, kvTokens: 512, contextTokens: 128 };

class Dice {
  #state: number;

  constructor(seed: number) {
    this.#state = seed;
  }

  /** A whole number below `bound`. */
  below(bound: number): number {
    this.#state = mix32(this.#state + 0x9e3779b9);
    return Math.floor((this.#state / 2 ** 32) * bound);
  }

  among<T>(values: readonly T[]): T {
    return values[this.below(values.length)] as T;
  }
}

const NUMBERS = [
  0n,
  1n,
  2n,
  7n,
  255n,
  0x7fffffffn,
  0xffffffffn,
  2n ** 32n,
  2n ** 63n - 1n,
  2n ** 64n - 1n,
];

const HEAD = readGgufHead(MODEL_PATH);
const SCALARS = [...HEAD.ranges].filter(([key]) => typeof HEAD.values.get(key) === "number");
/** Where the names, dimensions, types and offsets of the tensors begin. */
const TABLE_FROM = Math.max(...[...HEAD.ranges.values()].map(({ to }) => to));
/** What comes before a value. */
const TYPE_BYTES = 4;

type Damage = (bytes: Buffer, dice: Dice) => Buffer;

function flip(bytes: Buffer, at: number, dice: Dice): void {
  bytes[at] = (bytes[at] as number) ^ (1 << dice.below(8));
}

const DAMAGES: Readonly<Record<string, Damage>> = {
  "a flipped bit of the head": (bytes, dice) => {
    flip(bytes, dice.below(HEAD.dataOffset), dice);
    return bytes;
  },
  "a flipped bit of the tensors' table": (bytes, dice) => {
    flip(bytes, TABLE_FROM + dice.below(HEAD.dataOffset - TABLE_FROM), dice);
    return bytes;
  },
  "flipped bits anywhere": (bytes, dice) => {
    for (let i = 0; i < 64; i += 1) flip(bytes, dice.below(bytes.length), dice);
    return bytes;
  },
  "cut short": (bytes, dice) => bytes.subarray(0, dice.below(bytes.length)),
  "its head cut short": (bytes, dice) => bytes.subarray(0, dice.below(HEAD.dataOffset)),
  "a foreign count": (bytes, dice) => {
    bytes.writeBigUInt64LE(dice.among(NUMBERS), dice.among([8, 16]));
    return bytes;
  },
  "a foreign number in the head": (bytes, dice) => {
    bytes.writeBigUInt64LE(dice.among(NUMBERS), dice.below(HEAD.dataOffset - 8));
    return bytes;
  },
  "a foreign number in the tensors' table": (bytes, dice) => {
    const at = TABLE_FROM + dice.below(HEAD.dataOffset - TABLE_FROM - 8);
    bytes.writeBigUInt64LE(dice.among(NUMBERS), at);
    return bytes;
  },
  "another value of a field": (bytes, dice) => {
    const [, range] = dice.among(SCALARS);
    const value = dice.below(2) === 0 ? dice.among(NUMBERS) : BigInt(dice.below(5000));
    bytes.writeUInt32LE(Number(value & 0xffffffffn), range.from + TYPE_BYTES);
    return bytes;
  },
  "bytes of the head left out": (bytes, dice) => {
    const at = dice.below(HEAD.dataOffset);
    return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + dice.below(64))]);
  },
  "a page of noise": (bytes, dice) => {
    const at = dice.below(bytes.length - 4096);
    for (let i = 0; i < 4096; i += 1) bytes[at + i] = dice.below(256);
    return bytes;
  },
};

const scratch = mkdtempSync(join(tmpdir(), "foretoken-model-files-"));
afterAll(() => rmSync(scratch, { recursive: true }));

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
    const [worker] = await model.openWorkers({ ...CAPACITY, epoch: weightEpoch(0) });
    if (worker === undefined) throw new Error("no worker");
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
    for (let round = 0; round < rounds(22, 440); round += 1) {
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
});
