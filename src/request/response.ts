// One response as it grows: tokens, their logprobs, and which chunk ran where. It accepts tokens by
// offset only, so nothing is lost, repeated or reordered without being seen.

import { assert } from "../base/assert.ts";
import type { WeightEpoch, WeightsId, WorkerId } from "../base/ids.ts";
import type { FinishReason } from "./request.ts";

/** One dispatch of a divided request: `tokens` output tokens from `offset` on, made by `workerId`. */
export interface Chunk {
  readonly workerId: WorkerId;
  readonly epoch: WeightEpoch;
  /** Precision and digest of the weights that drew its tokens; null: its worker does not report it. */
  readonly weights: WeightsId | null;
  readonly offset: number;
  tokens: number;
}

/** The likeliest alternatives at each of some positions: rows of `count`, likeliest first. */
export interface TopLogprobs {
  readonly count: number;
  /** Rows of `count` token ids; -1 where an engine reported fewer. */
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
}

/** An engine's refusal of a request. */
export interface Refusal {
  /** 4xx: the request is wrong, as over HTTP; else: the engine is. */
  readonly status: number;
  readonly message: string;
}

export type AppendResult =
  | { kind: "ok"; fresh: number; repeated: number }
  | { kind: "gap"; missing: number };

const INITIAL_TOKENS = 64;

export class Response {
  readonly tokensMax: number;
  readonly chunks: Chunk[] = [];
  finish: FinishReason | null = null;
  /** Why it was given up, where an engine would not run it. */
  refusal: Refusal | null = null;
  /** Number of restarts. */
  restarts = 0;
  /** Of its prompt, in an engine's cache when it began; null: not reported. */
  promptTokensCached: number | null = null;
  #tokens = new Int32Array(INITIAL_TOKENS);
  #logprobs = new Float32Array(INITIAL_TOKENS);
  #length = 0;
  readonly #topCount: number;
  #topTokens = new Int32Array(0);
  #topLogprobs = new Float32Array(0);

  constructor(tokensMax: number, topLogprobs = 0) {
    assert(tokensMax >= 1, "a response holds at least one token");
    this.tokensMax = tokensMax;
    this.#topCount = topLogprobs;
    this.#topTokens = new Int32Array(INITIAL_TOKENS * topLogprobs);
    this.#topLogprobs = new Float32Array(INITIAL_TOKENS * topLogprobs);
  }

  /** Output tokens so far: 0 <= length <= tokensMax. */
  get length(): number {
    return this.#length;
  }

  /** Of its arrays, room for more tokens included. */
  get bytes(): number {
    const top = this.#topTokens.byteLength + this.#topLogprobs.byteLength;
    return this.#tokens.byteLength + this.#logprobs.byteLength + top;
  }

  /** A view, valid until the next append. */
  tokens(from = 0): Int32Array {
    return this.#tokens.subarray(from, this.#length);
  }

  /** Writes the tokens from `from` on to `target`, from `at` on: without the view that `tokens` makes. */
  copyTokens(from: number, target: Uint32Array, at: number): void {
    const tokens = this.#tokens;
    const shift = at - from;
    for (let i = from; i < this.#length; i += 1) target[i + shift] = tokens[i] as number;
  }

  /** A view, valid until the next append. */
  logprobs(from = 0): Float32Array {
    return this.#logprobs.subarray(from, this.#length);
  }

  /** null: none were asked for. Views, valid until the next append. */
  topLogprobs(from = 0): TopLogprobs | null {
    const count = this.#topCount;
    if (count === 0) return null;
    return {
      count,
      tokens: this.#topTokens.subarray(from * count, this.#length * count),
      logprobs: this.#topLogprobs.subarray(from * count, this.#length * count),
    };
  }

  openChunk(workerId: WorkerId, epoch: WeightEpoch, weights: WeightsId | null = null): void {
    this.chunks.push({ workerId, epoch, weights, offset: this.#length, tokens: 0 });
  }

  /**
   * Appends `tokens`, the first of which is output token number `offset`; skips what is already there.
   * `top`: rows for the same tokens, with the number of alternatives given at construction.
   */
  append(
    offset: number,
    tokens: Int32Array,
    logprobs: Float32Array,
    top: TopLogprobs | null = null,
  ): AppendResult {
    assert(tokens.length === logprobs.length, "every token has a logprob");
    if (offset > this.#length) return { kind: "gap", missing: offset - this.#length };
    const repeated = Math.min(this.#length - offset, tokens.length);
    const fresh = tokens.length - repeated;
    assert(this.#length + fresh <= this.tokensMax, "a response never exceeds its tokensMax");
    this.#reserve(this.#length + fresh);
    // A loop is faster than two views for the few tokens that a step brings.
    for (let i = 0; i < fresh; i += 1) {
      this.#tokens[this.#length + i] = tokens[repeated + i] as number;
      this.#logprobs[this.#length + i] = logprobs[repeated + i] as number;
    }
    if (this.#topCount > 0) this.#appendTop(top, repeated, fresh);
    this.#length += fresh;
    const chunk = this.chunks.at(-1);
    if (chunk !== undefined) chunk.tokens += fresh;
    return { kind: "ok", fresh, repeated };
  }

  /** Discards all tokens: the response restarts. */
  restart(): void {
    this.restarts += 1;
    this.chunks.length = 0;
    this.#length = 0;
  }

  #appendTop(top: TopLogprobs | null, repeated: number, fresh: number): void {
    const count = this.#topCount;
    const at = this.#length * count;
    if (top === null || top.count !== count) {
      this.#topTokens.fill(-1, at, at + fresh * count);
      return;
    }
    this.#topTokens.set(top.tokens.subarray(repeated * count), at);
    this.#topLogprobs.set(top.logprobs.subarray(repeated * count), at);
  }

  #reserve(length: number): void {
    if (length <= this.#tokens.length) return;
    const capacity = Math.min(this.tokensMax, Math.max(length, this.#tokens.length * 2));
    this.#tokens = grown(this.#tokens, new Int32Array(capacity));
    this.#logprobs = grown(this.#logprobs, new Float32Array(capacity));
    if (this.#topCount === 0) return;
    this.#topTokens = grown(this.#topTokens, new Int32Array(capacity * this.#topCount));
    this.#topLogprobs = grown(this.#topLogprobs, new Float32Array(capacity * this.#topCount));
  }
}

function grown<T extends Int32Array | Float32Array>(from: T, to: T): T {
  to.set(from);
  return to;
}
