// What an earlier process has generated of a response, so that another one continues from it.

import type { TopLogprobs } from "./columns.ts";
import type { FinishReason } from "./request.ts";
import type { Chunk, Refusal } from "./response.ts";

export interface SavedOutput {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
  readonly chunks: readonly Chunk[];
  /** null: it is not finished. */
  readonly finish: FinishReason | null;
  readonly refusal: Refusal | null;
}
