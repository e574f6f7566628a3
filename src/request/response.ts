// One response as it grows: tokens, their logprobs, and which chunk ran where. It accepts tokens by
// offset only, so nothing is lost, repeated or reordered without being seen.

import { assert } from "../base/assert.ts";
import type { WorkerId } from "../base/ids.ts";
import type { FinishReason } from "./request.ts";

/** One dispatch of a divided request: `tokens` output tokens from `offset` on, made by `workerId`. */
export interface Chunk {
  readonly workerId: WorkerId;
  readonly offset: number;
  tokens: number;
}

export type AppendResult =
  | { kind: "ok"; fresh: number; repeated: number }
  | { kind: "gap"; missing: number };

const INITIAL_TOKENS = 64;

export class Response {
  readonly tokensMax: number;
  readonly chunks: Chunk[] = [];
  finish: FinishReason | null = null;
  #tokens = new Int32Array(INITIAL_TOKENS);
  #logprobs = new Float32Array(INITIAL_TOKENS);
  #length = 0;

  constructor(tokensMax: number) {
    assert(tokensMax >= 1, "a response holds at least one token");
    this.tokensMax = tokensMax;
  }

  /** Output tokens so far: 0 <= length <= tokensMax. */
  get length(): number {
    return this.#length;
  }

  /** A view, valid until the next append. */
  tokens(from = 0): Int32Array {
    return this.#tokens.subarray(from, this.#length);
  }

  /** A view, valid until the next append. */
  logprobs(from = 0): Float32Array {
    return this.#logprobs.subarray(from, this.#length);
  }

  openChunk(workerId: WorkerId): void {
    this.chunks.push({ workerId, offset: this.#length, tokens: 0 });
  }

  /** Appends `tokens`, the first of which is output token number `offset`; skips what is already there. */
  append(offset: number, tokens: Int32Array, logprobs: Float32Array): AppendResult {
    assert(tokens.length === logprobs.length, "every token has a logprob");
    if (offset > this.#length) return { kind: "gap", missing: offset - this.#length };
    const repeated = Math.min(this.#length - offset, tokens.length);
    const fresh = tokens.length - repeated;
    assert(this.#length + fresh <= this.tokensMax, "a response never exceeds its tokensMax");
    this.#reserve(this.#length + fresh);
    this.#tokens.set(tokens.subarray(repeated), this.#length);
    this.#logprobs.set(logprobs.subarray(repeated), this.#length);
    this.#length += fresh;
    const chunk = this.chunks.at(-1);
    if (chunk !== undefined) chunk.tokens += fresh;
    return { kind: "ok", fresh, repeated };
  }

  #reserve(length: number): void {
    if (length <= this.#tokens.length) return;
    const capacity = Math.min(this.tokensMax, Math.max(length, this.#tokens.length * 2));
    const tokens = new Int32Array(capacity);
    const logprobs = new Float32Array(capacity);
    tokens.set(this.#tokens.subarray(0, this.#length));
    logprobs.set(this.#logprobs.subarray(0, this.#length));
    this.#tokens = tokens;
    this.#logprobs = logprobs;
  }
}
