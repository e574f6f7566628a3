// Names a KV blob by what it was computed from: the weight epoch and every token of the prefix.
// Owns the prefix hash. Two different prefixes must never share a name: the pool would hand over
// KV of other tokens, no checksum would notice, and the response would silently be another model's.
//
// So the hash is a cryptographic one: SHA-256, cut to 128 bits. Prompts come from outside, and for the
// quick hashes colliding inputs can be written down at will (vLLM had to leave Python's hash() for this
// reason, CVE-2025-25183). For SHA-256/128 none are known; a million live blobs collide by chance with
// probability 2^-89. A prefix of 4,096 tokens costs about 0.1 ms, and a longer one only what was added.

import { assert } from "../base/assert.ts";
import { type WeightEpoch, weightEpoch } from "../base/ids.ts";
import type { KvKey } from "./pool.ts";
import { BLOCK_WORDS, compress, INITIAL_STATE } from "./sha256.ts";

const STATE_WORDS = 8;
/** Words of the digest that make up the name: 4 x 32 = 128 bits. */
const NAME_WORDS = 4;
/** FIPS 180-4 section 5.1.1: a one bit, zeros, then the message's length in 64 bits. */
const PADDING_FIRST_WORD = 0x80000000 | 0;
const LENGTH_WORDS = 2;

/**
 * The hash of a growing token prefix. Tokens enter as big-endian 32-bit words, so the name of n tokens
 * is the SHA-256 of their 4n bytes, whatever pieces they came in.
 */
export class PrefixHasher {
  readonly #state = Int32Array.from(INITIAL_STATE);
  /** Tokens since the last full block: the first `count % BLOCK_WORDS` words are valid. */
  readonly #block = new Int32Array(BLOCK_WORDS);
  #count = 0;

  /** Tokens hashed so far. */
  get count(): number {
    return this.#count;
  }

  /** Appends `tokens[from]` up to, not including, `tokens[to]`. */
  extend(tokens: Int32Array, from = 0, to = tokens.length): this {
    assert(0 <= from && from <= to && to <= tokens.length, "0 <= from <= to <= tokens.length");
    let filled = this.#count % BLOCK_WORDS;
    let next = from;
    while (next < to) {
      const taken = Math.min(BLOCK_WORDS - filled, to - next);
      if (taken === BLOCK_WORDS) {
        compress(this.#state, tokens, next);
      } else {
        for (let i = 0; i < taken; i += 1) this.#block[filled + i] = tokens[next + i] ?? 0;
        if (filled + taken === BLOCK_WORDS) compress(this.#state, this.#block, 0);
      }
      filled = (filled + taken) % BLOCK_WORDS;
      next += taken;
    }
    this.#count += to - from;
    return this;
  }

  /** The name of the tokens so far under `epoch`. The hasher can go on afterwards. */
  key(epoch: WeightEpoch): KvKey {
    const filled = this.#count % BLOCK_WORDS;
    const blocks = filled + 1 + LENGTH_WORDS > BLOCK_WORDS ? 2 : 1;
    const tail = new Int32Array(blocks * BLOCK_WORDS);
    tail.set(this.#block.subarray(0, filled));
    tail[filled] = PADDING_FIRST_WORD;
    const bits = this.#count * 32;
    tail[tail.length - 2] = Math.floor(bits / 4294967296);
    tail[tail.length - 1] = bits | 0;
    const state = this.#state.slice(0, STATE_WORDS);
    for (let i = 0; i < blocks; i += 1) compress(state, tail, i * BLOCK_WORDS);
    let hex = "";
    for (let i = 0; i < NAME_WORDS; i += 1) {
      hex += ((state[i] ?? 0) >>> 0).toString(16).padStart(8, "0");
    }
    return `${epoch}.${this.#count}.${hex}` as KvKey;
  }
}

/** The name of the KV of the first `count` of `tokens` under the weights of `epoch`. */
export function kvKey(epoch: WeightEpoch, tokens: Int32Array, count: number): KvKey {
  return new PrefixHasher().extend(tokens, 0, count).key(epoch);
}

/** The weight epoch a key was made for. */
export function epochOf(key: KvKey): WeightEpoch {
  const epoch = Number.parseInt(key, 10);
  assert(Number.isSafeInteger(epoch), `${key} is not a KV key`);
  return weightEpoch(epoch);
}
