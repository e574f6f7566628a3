// A response that counts its tokens and keeps none: a full iteration makes 250 million of them. Whoever reads them reads
// zeros.

import { assert } from "../../core/base/assert.ts";
import type { Request } from "../../core/request/buffer.ts";
import { Response } from "../../core/request/response.ts";

/** Longer than any response of a workload. */
const LENGTH_MAX = 2 ** 21;
/** Stand for any tokens; views of them are handed out and never written to. */
export const NO_TOKENS = new Int32Array(LENGTH_MAX);
export const NO_LOGPROBS = new Float32Array(LENGTH_MAX);

class CountedResponse extends Response {
  #count = 0;

  override get length(): number {
    return this.#count;
  }

  override tokens(from = 0): Int32Array {
    return NO_TOKENS.subarray(from, this.#count);
  }

  override copied(): Int32Array {
    return this.tokens();
  }

  override appendFrom(tokens: Int32Array, _logprobs: unknown, _top: unknown, from: number): void {
    this.#count += tokens.length - from;
  }
}

/** Gives a request that has just joined a response without tokens, before anybody has read it. */
export function countOnly(request: Request): void {
  assert(request.response.length === 0, "it has just joined");
  const writable: { -readonly [K in keyof Request]: Request[K] } = request;
  const { tokensMax, joinedMs } = request.response;
  writable.response = new CountedResponse(tokensMax);
  writable.response.joinedMs = joinedMs;
}
