// Blobs of KV pools: 1,000 bytes, so that limits read as counts of blobs.

import { type WeightEpoch, weightEpoch } from "../../src/core/base/ids.ts";
import { kvKey } from "../../src/core/kv/key.ts";
import type { KvKey, KvPool } from "../../src/core/kv/pool.ts";

export const BLOB_BYTES = 1000;

const EPOCH_0 = weightEpoch(0);

/** The key of a one-token prefix. */
export function keyOf(token: number, epoch: WeightEpoch = EPOCH_0): KvKey {
  return kvKey(epoch, Int32Array.of(token), 1);
}

/** Bytes that belong to `token` and to no other. */
export function blobOf(token: number, size = BLOB_BYTES): ArrayBuffer {
  const bytes = new Uint8Array(size);
  for (let i = 0; i < size; i += 1) bytes[i] = (token * 31 + i * 7 + (i >>> 8)) & 255;
  return bytes.buffer;
}

export async function isHeld(pool: KvPool, token: number): Promise<boolean> {
  return (await pool.get(keyOf(token))) !== null;
}
