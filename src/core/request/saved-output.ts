// A response's output from an earlier process, from which this process continues.

import type { TopLogprobs } from "./columns.ts";
import type { ResponseEnd } from "./request.ts";
import type { Chunk, Refusal, RolloutResponse } from "./response.ts";

export interface SavedOutput {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
  readonly chunks: readonly Chunk[];
  /** null: the response is not finished. */
  readonly finish: ResponseEnd | null;
  readonly refusal: Refusal | null;
}

/** Restores saved output to an empty response, chunk by chunk. */
export function restore(
  response: RolloutResponse,
  { chunks, tokens, logprobs, top }: SavedOutput,
): void {
  const count = top?.count ?? 0;
  for (const { workerId, epoch, weights, offset, tokens: made } of chunks) {
    const end = offset + made;
    response.openChunk(workerId, epoch, weights);
    response.append(
      offset,
      tokens.subarray(offset, end),
      logprobs.subarray(offset, end),
      top && {
        count,
        tokens: top.tokens.subarray(offset * count, end * count),
        logprobs: top.logprobs.subarray(offset * count, end * count),
      },
    );
  }
}
