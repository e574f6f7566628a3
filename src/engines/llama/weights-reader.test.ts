// What the child process that reads weights may run into: paths that are no model, files that change under it,
// damage that ends it, time that passes without progress.

import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { valueAt } from "../../../test/llama/checkpoint.ts";
import { MODEL_PATH, skipReason } from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder, written } from "../../../test/suite/temporary-folder.ts";
import type { AppError } from "../../core/base/errors.ts";
import { MemoryFile } from "./files.ts";
import { importWeights } from "./weights-child.ts";
import { type ReadOptions, readWeights } from "./weights-reader.ts";

setDefaultTimeout(180_000);

const scratch = temporaryFolder("reader");
const form = MemoryFile.create();
afterAll(() => {
  form.close();
});

function read(path: string, more: Partial<ReadOptions> = {}): Promise<unknown> {
  return readWeights({ path, deterministic: true, isFirst: true, form, ...more });
}

function folder(name: string, ...files: string[]): string {
  const path = join(scratch, name);
  mkdirSync(path);
  for (const file of files) writeFileSync(join(path, file), "");
  return path;
}

describe.skipIf(skipReason !== null)("readWeights", () => {
  test("a path that is no model: what it is, and what to give", async () => {
    const pipe = join(scratch, "pipe");
    Bun.spawnSync(["mkfifo", pipe]);
    const cases: [string, string][] = [
      [join(scratch, "absent.gguf"), "there is no such file"],
      [join(MODEL_PATH, "absent.gguf"), "there is no such file"],
      [
        folder("checkpoint", "config.json", "model.safetensors"),
        "begins with a GGUF file, which this is not: convert",
      ],
      [folder("models", "b.gguf", "a.gguf"), "which this is not: give"],
      [folder("empty"), "begins with a GGUF file"],
      [written(scratch, "model.safetensors", new Uint8Array(8)), "begins with a GGUF file"],
      [written(scratch, "empty.gguf", new Uint8Array(0)), "is empty"],
      [written(scratch, "foreign.gguf", new Uint8Array(99)), "not a GGUF file"],
      [pipe, "is no regular file"],
    ];
    for (const [path, problem] of cases) {
      const { code, message } = (await read(path).catch((error: unknown) => error)) as AppError;
      expect({ code, message }).toEqual({
        code: "model_unreadable",
        message: expect.stringContaining(problem),
      });
      expect(message.split(path).length).toBe(message.includes("a.gguf") ? 3 : 2);
    }
  });

  test("damage that aborts llama.cpp ends the child alone, and its last words are the reason", async () => {
    const bytes = readFileSync(MODEL_PATH);
    bytes.writeUInt32LE(0, valueAt(bytes, "qwen3.block_count"));
    const path = written(scratch, "damaged.gguf", bytes);
    await expect(read(path)).rejects.toMatchObject({
      code: "model_unreadable",
      message: expect.stringMatching(
        /loading it ended with SIGABRT: the file may be damaged .*GGML_ASSERT/,
      ),
    });
  });

  test("a child that reports nothing for too long is killed, and the error names its stage", async () => {
    await expect(read(MODEL_PATH, { silenceMsMax: 1 })).rejects.toMatchObject({
      code: "model_unreadable",
      message: `${MODEL_PATH}: reading it made no progress for 0.001 s`,
    });
  });

  test("a file that changes while it is read is refused", () => {
    const path = join(scratch, "changing.gguf");
    copyFileSync(MODEL_PATH, path);
    const target = MemoryFile.create();
    const change = () => writeFileSync(path, "other", { flag: "r+" });
    const options = { path, target: target.descriptor, form: null, progress: change };
    expect(() => importWeights(options)).toThrow("was changed while it was read");
    target.close();
  });
});
