import { expect, test } from "bun:test";
import { weightEpoch } from "../../core/base/ids.ts";
import { KV_HEADER_BYTES, openKvBlob, sealKvBlob } from "./kv-blob.ts";

const origin = { epoch: weightEpoch(3), tokens: Int32Array.of(5, 6, 7, 8), count: 3 };

function newBlob() {
  const bytes = new ArrayBuffer(KV_HEADER_BYTES + 40);
  new Uint8Array(bytes, KV_HEADER_BYTES).fill(9);
  return sealKvBlob(bytes, origin);
}

test("openKvBlob: returns the payload of a whole blob of the same origin", () => {
  expect(openKvBlob(newBlob(), origin)).toEqual(new Uint8Array(40).fill(9));
});

test("openKvBlob: refuses every single flipped bit", () => {
  const { tokens, bytes } = newBlob();
  for (let bit = 0; bit < bytes.byteLength * 8; bit += 1) {
    const copy = bytes.slice(0);
    const view = new Uint8Array(copy);
    view[bit >> 3] = (view[bit >> 3] ?? 0) ^ (1 << (bit & 7));
    expect(openKvBlob({ tokens, bytes: copy }, origin)).toBe(null);
  }
});

test("openKvBlob: refuses a blob cut at any byte", () => {
  const { tokens, bytes } = newBlob();
  for (let end = 0; end < bytes.byteLength; end += 1) {
    expect(openKvBlob({ tokens, bytes: bytes.slice(0, end) }, origin)).toBe(null);
  }
});

test("openKvBlob: refuses another epoch, other tokens, another count", () => {
  const blob = newBlob();
  expect(openKvBlob(blob, { ...origin, epoch: weightEpoch(4) })).toBe(null);
  expect(openKvBlob(blob, { ...origin, tokens: Int32Array.of(5, 9, 7, 8) })).toBe(null);
  expect(openKvBlob(blob, { ...origin, count: 2 })).toBe(null);
  expect(openKvBlob({ ...blob, tokens: 2 }, origin)).toBe(null);
  // Tokens after the blob's are no part of what it was computed from.
  expect(openKvBlob(blob, { ...origin, tokens: Int32Array.of(5, 6, 7, 1) })).not.toBe(null);
});
