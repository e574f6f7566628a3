// A thread that loads one model and ends: reading weights takes seconds for a large model, and the rollout's
// thread must not wait for it. The weights stay in the process; only the pointer is sent.

import { serveJobs } from "../../text/job-lane.ts";
import { openLibrary } from "./native.ts";
import { LlamaWeights, type ModelInfo } from "./weights.ts";

export interface LoadRequest {
  /** A GGUF file that a child process has tried. */
  readonly path: string;
  /** Name of the file in errors. */
  readonly name: string;
}

export interface LoadedModel {
  readonly pointer: number;
  readonly info: ModelInfo;
}

serveJobs(() => ({ path, name }: LoadRequest): LoadedModel => {
  const { pointer, info } = LlamaWeights.load(openLibrary(), path, { name });
  return { pointer, info };
});
