// The bytes of one request's KV when it moves between engines: a header that identifies the tokens and
// weights, and a checksum, because libllama accepts a payload with flipped bits.
//
//   0  u32 CRC-32 of the payload              16 u32 hash of the tokens, high
//   4  u32 magic "FKV2"                       20 u32 hash of the tokens, low
//   8  u32 weight epoch                       24 u32 payload bytes
//  12  u32 tokens                             28 u32 zero
//  32  payload of llama_state_seq_get_data

import { assert } from "../../core/base/assert.ts";
import { fold32 } from "../../core/base/hash.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";

export const KV_HEADER_BYTES = 32;
const HEADER_WORDS = KV_HEADER_BYTES / 4;
const MAGIC = 0x32564b46;

/** The input that a blob was computed from: the first `count` of `tokens`, under the weights of `epoch`. */
interface KvOrigin {
  readonly epoch: WeightEpoch;
  readonly tokens: Int32Array;
  readonly count: number;
}

/** Completes a blob whose payload begins at KV_HEADER_BYTES. The blob owns `bytes` from then on. */
export function sealKvBlob(bytes: ArrayBuffer, origin: KvOrigin): KvBlob {
  assert(bytes.byteLength > KV_HEADER_BYTES, "a KV blob has a payload");
  new Uint32Array(bytes, 0, HEADER_WORDS).set(headerOf(bytes, origin));
  return { tokens: origin.count, bytes };
}

/** The payload, if the blob is intact and of exactly this origin; null: compute the KV again. Never throws. */
export function openKvBlob({ tokens, bytes }: KvBlob, origin: KvOrigin): Uint8Array | null {
  if (tokens !== origin.count || bytes.byteLength <= KV_HEADER_BYTES) return null;
  const found = new Uint32Array(bytes, 0, HEADER_WORDS);
  const isWanted = headerOf(bytes, origin).every((word, i) => word === found[i]);
  return isWanted ? new Uint8Array(bytes, KV_HEADER_BYTES) : null;
}

function headerOf(bytes: ArrayBuffer, { epoch, tokens, count }: KvOrigin): Uint32Array {
  const payload = new Uint8Array(bytes, KV_HEADER_BYTES);
  const [high, low] = [1, 2].map((seed) => tokens.subarray(0, count).reduce(fold32, seed));
  const words = [Bun.hash.crc32(payload), MAGIC, epoch, count, high, low, payload.length, 0];
  return Uint32Array.from(words as number[]);
}
