// A response that counts its tokens but does not keep them: a full iteration has 250 million. All tokens
// read as zero.

import { assert } from "../../core/base/assert.ts";
import type { RolloutRequest } from "../../core/request/buffer.ts";
import { RolloutResponse } from "../../core/request/response.ts";

/** Upper bound of a response's length in any workload. */
const LENGTH_MAX = 2 ** 21;
const ZEROS = new ArrayBuffer(4 * LENGTH_MAX);
/** Arrays of fewer tokens are kept for reuse: most reports, and most first parts, are as short as that. */
const KEPT = 16_384;

interface Tokens {
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
}

const kept = Array<Tokens | null>(KEPT).fill(null);

/** An array of `count` arbitrary tokens, which is never written to. */
export function tokensOf(count: number): Tokens {
  const cached = count < KEPT ? kept[count] : null;
  if (cached) return cached;
  const tokens = new Int32Array(ZEROS, 0, count);
  const fresh = { tokens, logprobs: new Float32Array(ZEROS, 0, count) };
  if (count < KEPT) kept[count] = fresh;
  return fresh;
}

class CountedResponse extends RolloutResponse {
  #count = 0;

  override get length(): number {
    return this.#count;
  }

  override tokens(from = 0): Int32Array {
    return tokensOf(this.#count - from).tokens;
  }

  override copied(): Int32Array {
    return this.tokens();
  }

  override get isCounted(): boolean {
    return true;
  }

  override appendFrom(tokens: Int32Array, _logprobs: unknown, _top: unknown, from: number): void {
    this.#count += tokens.length - from;
  }
}

/** Replaces the response of a request that has just joined by a counting one, before anybody has read it. */
export function countOnly(request: RolloutRequest): void {
  assert(request.response.length === 0, "it has just joined");
  const writable: { -readonly [K in keyof RolloutRequest]: RolloutRequest[K] } = request;
  const { tokensMax, joinedMs } = request.response;
  writable.response = new CountedResponse(tokensMax);
  writable.response.joinedMs = joinedMs;
}
