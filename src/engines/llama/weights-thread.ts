// A thread that loads one model and ends: reading weights takes seconds for a large model, and the rollout's
// thread must not wait for it. The weights stay in the process; only the pointer is sent.

import { AppError, type ErrorCode } from "../../core/base/errors.ts";
import { openLibrary } from "./native.ts";
import { LlamaWeights, type ModelInfo } from "./weights.ts";

declare const self: Worker;

export interface LoadRequest {
  /** A GGUF file that a child process has tried. */
  readonly path: string;
  /** Name of the file in errors. */
  readonly name: string;
}

export type LoadAnswer =
  | { kind: "loaded"; pointer: number; info: ModelInfo }
  | { kind: "failed"; code: ErrorCode; message: string };

function load({ path, name }: LoadRequest): LoadAnswer {
  try {
    const { pointer, info } = LlamaWeights.load(openLibrary(), path, { name });
    return { kind: "loaded", pointer, info };
  } catch (error) {
    const code = error instanceof AppError ? error.code : "model_unreadable";
    return { kind: "failed", code, message: error instanceof Error ? error.message : `${error}` };
  }
}

self.onmessage = ({ data }: MessageEvent<LoadRequest>) => self.postMessage(load(data));
