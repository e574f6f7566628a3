// A thread that loads one model and ends: a large model takes seconds, for which the rollout's thread must not
// wait. The weights stay in the process; only the pointer is sent.

import { serveJobs } from "../../text/job-lane.ts";
import { LlamaWeights, type SharedWeights } from "./weights.ts";

export interface LoadRequest {
  /** A GGUF file that a child process has tested. */
  readonly path: string;
  /** Name of the file in errors. */
  readonly name: string;
}

export type LoadedModel = Omit<SharedWeights, "id">;

serveJobs(() => ({ path, name }: LoadRequest): LoadedModel => {
  const { pointer, info } = LlamaWeights.load(path, { name });
  return { pointer, info };
});
