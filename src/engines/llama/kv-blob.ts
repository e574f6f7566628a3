// The bytes in which one request's KV leaves an engine and enters another: a header that identifies the
// tokens and weights, and a checksum, because libllama accepts a payload with flipped bits.
//
//   0  u32 CRC-32 of everything after it      16 u32 hash of the tokens, high
//   4  u32 magic "FKV1"                       20 u32 hash of the tokens, low
//   8  u32 weight epoch                       24 u32 payload bytes
//  12  u32 tokens                             28 u32 zero
//  32  payload of llama_state_seq_get_data

import { assert } from "../../core/base/assert.ts";
import { fold32 } from "../../core/base/hash.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";

export const KV_HEADER_BYTES = 32;
const MAGIC = 0x31564b46;

const AT_CRC = 0;
const AT_MAGIC = 4;
const AT_EPOCH = 8;
const AT_TOKENS = 12;
const AT_HASH_HIGH = 16;
const AT_HASH_LOW = 20;
const AT_PAYLOAD = 24;

/** Input that a blob must have been computed from: the first `count` of `tokens`, under the weights of `epoch`. */
export interface KvOrigin {
  readonly epoch: WeightEpoch;
  readonly tokens: Int32Array;
  readonly count: number;
}

/** Completes a blob whose payload stands at KV_HEADER_BYTES; `bytes` becomes the blob's. */
export function sealKvBlob(bytes: ArrayBuffer, origin: KvOrigin): KvBlob {
  assert(bytes.byteLength > KV_HEADER_BYTES, "a KV blob has a payload");
  const view = new DataView(bytes);
  view.setUint32(AT_MAGIC, MAGIC, true);
  view.setUint32(AT_EPOCH, origin.epoch, true);
  view.setUint32(AT_TOKENS, origin.count, true);
  view.setUint32(AT_HASH_HIGH, hashTokens(origin, 1), true);
  view.setUint32(AT_HASH_LOW, hashTokens(origin, 2), true);
  view.setUint32(AT_PAYLOAD, bytes.byteLength - KV_HEADER_BYTES, true);
  view.setUint32(AT_CRC, crc(bytes), true);
  return { tokens: origin.count, bytes };
}

/** The payload, if the blob is whole and holds exactly this origin; null: recompute. Never throws. */
export function openKvBlob(blob: KvBlob, origin: KvOrigin): Uint8Array | null {
  const { bytes } = blob;
  if (bytes.byteLength <= KV_HEADER_BYTES) return null;
  const view = new DataView(bytes);
  const whole =
    view.getUint32(AT_MAGIC, true) === MAGIC &&
    view.getUint32(AT_PAYLOAD, true) === bytes.byteLength - KV_HEADER_BYTES &&
    view.getUint32(AT_CRC, true) === crc(bytes);
  const mine =
    blob.tokens === origin.count &&
    view.getUint32(AT_TOKENS, true) === origin.count &&
    view.getUint32(AT_EPOCH, true) === origin.epoch &&
    view.getUint32(AT_HASH_HIGH, true) === hashTokens(origin, 1) &&
    view.getUint32(AT_HASH_LOW, true) === hashTokens(origin, 2);
  return whole && mine ? new Uint8Array(bytes, KV_HEADER_BYTES) : null;
}

function crc(bytes: ArrayBuffer): number {
  return Bun.hash.crc32(new Uint8Array(bytes, AT_MAGIC)) >>> 0;
}

function hashTokens(origin: KvOrigin, seed: number): number {
  let hash = seed;
  for (let i = 0; i < origin.count; i += 1) hash = fold32(hash, origin.tokens[i] as number);
  return hash;
}
