// A thread that loads one model file and ends: reading weights takes seconds for a large model, and the
// rollout's thread must go on meanwhile. The weights stay in the process; only the pointer is sent.

import { AppError, type ErrorCode } from "../../base/errors.ts";
import type { SharedWeights } from "./messages.ts";
import { openLibrary } from "./native.ts";
import { LlamaWeights } from "./weights.ts";

declare const self: Worker;

export type LoadAnswer =
  | { kind: "loaded"; weights: SharedWeights }
  | { kind: "failed"; code: ErrorCode; message: string };

function load(path: string): LoadAnswer {
  try {
    const { pointer, info } = LlamaWeights.load(openLibrary(), path);
    return { kind: "loaded", weights: { pointer, info } };
  } catch (error) {
    const code = error instanceof AppError ? error.code : "model_unreadable";
    return { kind: "failed", code, message: error instanceof Error ? error.message : `${error}` };
  }
}

self.onmessage = ({ data }: MessageEvent<string>) => self.postMessage(load(data));
