// Names a KV blob by its input: the weight epoch and every token of the prefix. Two different
// prefixes must never share a name: the pool would return KV of other tokens, no checksum would
// notice, and the response would silently be wrong.
//
// So the hash is cryptographic: SHA-256, cut to 128 bits. Prompts come from outside, and anybody can
// construct collisions of a fast hash (vLLM had to give up Python's hash() for this reason,
// CVE-2025-25183). A million live blobs collide by chance with probability 2^-89. A prefix of
// 4,096 tokens costs about 12 us.

import { createHash } from "node:crypto";
import { assert } from "../base/assert.ts";
import type { WeightEpoch, WeightsId } from "../base/ids.ts";
import type { KvKey } from "./pool.ts";

const HEX_CHARACTERS = 32;

/**
 * The key of the KV of the first `count` of `tokens` under the weights of `epoch`. `weights`: the digest of these weights;
 * null: not known. `salt`: the client's cache_salt; null: none.
 */
export function kvKey(
  epoch: WeightEpoch,
  tokens: Int32Array,
  count: number,
  { weights = null, salt = null }: { weights?: WeightsId | null; salt?: string | null } = {},
): KvKey {
  assert(0 <= count && count <= tokens.length, "0 <= count <= tokens.length");
  const hashed = createHash("sha256").update(tokens.subarray(0, count));
  // The name has the number of tokens, so that a salt cannot be taken for some of them.
  const hash = (salt === null ? hashed : hashed.update(salt)).digest("hex");
  const name = `${epoch}.${count}.${hash.slice(0, HEX_CHARACTERS)}`;
  return (weights === null ? name : `${name}.${weights}`) as KvKey;
}
