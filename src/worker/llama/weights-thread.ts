// A thread that loads one model and ends: reading weights takes seconds for a large model, and the rollout's
// thread must go on meanwhile. The weights stay in the process; only the pointer is sent. Safetensors become
// a GGUF file in a temporary folder, which is gone again when they are loaded.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AppError, type ErrorCode } from "../../base/errors.ts";
import type { SharedWeights } from "./messages.ts";
import { openLibrary } from "./native.ts";
import { isSafetensors } from "./safetensors.ts";
import { LlamaWeights } from "./weights.ts";
import { convertWeights } from "./weights-conversion.ts";

declare const self: Worker;

export interface LoadRequest {
  readonly path: string;
  /** The GGUF file whose form safetensors are converted to. */
  readonly base: string;
}

export type LoadAnswer =
  | { kind: "loaded"; weights: SharedWeights }
  | { kind: "failed"; code: ErrorCode; message: string };

function load({ path, base }: LoadRequest): LoadAnswer {
  try {
    const library = openLibrary();
    const isConverted = path !== base && isSafetensors(path);
    const { pointer, info } = isConverted
      ? convertAndLoad({ path, base })
      : LlamaWeights.load(library, path);
    return { kind: "loaded", weights: { pointer, info: { ...info, path } } };
  } catch (error) {
    const code = error instanceof AppError ? error.code : "model_unreadable";
    return { kind: "failed", code, message: error instanceof Error ? error.message : `${error}` };
  }
}

function convertAndLoad({ path, base }: LoadRequest): LlamaWeights {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-weights-"));
  try {
    const target = join(folder, "weights.gguf");
    convertWeights({ base, source: path, target });
    return LlamaWeights.load(openLibrary(), target);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

self.onmessage = ({ data }: MessageEvent<LoadRequest>) => self.postMessage(load(data));
