import { expect, test } from "bun:test";
import fc from "fast-check";
import { weightEpoch } from "../base/ids.ts";
import { epochOf, kvKey, PrefixHasher } from "./key.ts";

const epoch = weightEpoch(3);

/** SHA-256 of the tokens as big-endian words, from the runtime's own implementation, cut to 128 bits. */
function reference(tokens: Int32Array): string {
  const bytes = new DataView(new ArrayBuffer(tokens.length * 4));
  for (const [i, token] of tokens.entries()) bytes.setInt32(i * 4, token);
  return new Bun.CryptoHasher("sha256")
    .update(new Uint8Array(bytes.buffer))
    .digest("hex")
    .slice(0, 32);
}

test("kvKey: is SHA-256 of the prefix at every length around a block", () => {
  const tokens = Int32Array.from({ length: 70 }, (_, i) => i * 2654435761);
  for (let count = 0; count <= tokens.length; count += 1) {
    expect(kvKey(epoch, tokens, count)).toBe(
      `3.${count}.${reference(tokens.subarray(0, count))}` as ReturnType<typeof kvKey>,
    );
  }
});

test("PrefixHasher: does not depend on the pieces the tokens come in", () => {
  fc.assert(
    fc.property(fc.array(fc.int32Array({ maxLength: 40 }), { maxLength: 8 }), (pieces) => {
      const hasher = new PrefixHasher();
      const all: number[] = [];
      for (const piece of pieces) {
        hasher.extend(piece);
        all.push(...piece);
        // Asking for a key in between must not disturb what follows.
        expect(hasher.key(epoch)).toBe(kvKey(epoch, Int32Array.from(all), all.length));
      }
      expect(hasher.count).toBe(all.length);
    }),
  );
});

test("PrefixHasher: extends from and to within an array", () => {
  const tokens = Int32Array.from({ length: 100 }, (_, i) => i);
  const hasher = new PrefixHasher().extend(tokens, 0, 37).extend(tokens, 37, 90);
  expect(hasher.key(epoch)).toBe(kvKey(epoch, tokens, 90));
});

test("kvKey: one other token, another order, another length or another epoch is another key", () => {
  const tokens = Int32Array.of(1, 2, 3, 0);
  const keys = [
    kvKey(epoch, tokens, 4),
    kvKey(epoch, tokens, 3),
    kvKey(epoch, Int32Array.of(2, 1, 3, 0), 4),
    kvKey(epoch, Int32Array.of(1, 2, 3, 4), 4),
    kvKey(weightEpoch(4), tokens, 4),
  ];
  expect(new Set(keys).size).toBe(keys.length);
});

test("kvKey: a count beyond the tokens is a bug", () => {
  expect(() => kvKey(epoch, Int32Array.of(1), 2)).toThrow("0 <= from <= to");
});

test("epochOf: reads the epoch back", () => {
  expect(epochOf(kvKey(weightEpoch(17), Int32Array.of(5), 1))).toBe(weightEpoch(17));
});
