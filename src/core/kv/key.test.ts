import { expect, test } from "bun:test";
import { weightEpoch, weightsId } from "../base/ids.ts";
import { kvKey } from "./key.ts";

const epoch = weightEpoch(3);

test("kvKey: one other token, another order, another length, another epoch, other weights or another salt is another key", () => {
  const tokens = Int32Array.of(1, 2, 3, 0);
  const keys = [
    kvKey(epoch, tokens, 4),
    kvKey(epoch, tokens, 3),
    kvKey(epoch, Int32Array.of(2, 1, 3, 0), 4),
    kvKey(epoch, Int32Array.of(1, 2, 3, 4), 4),
    kvKey(weightEpoch(4), tokens, 4),
    kvKey(epoch, tokens, 4, { weights: weightsId("f16-1") }),
    kvKey(epoch, tokens, 4, { weights: weightsId("q8_0-1") }),
    kvKey(epoch, tokens, 4, { salt: "1" }),
    kvKey(epoch, tokens, 4, { salt: "2" }),
  ];
  expect(new Set(keys).size).toBe(keys.length);
});

test("kvKey: depends on the tokens alone, not on where they lie", () => {
  const tokens = Int32Array.from({ length: 90 }, (_, i) => i * 2654435761);
  const inside = Int32Array.of(7, ...tokens, 7).subarray(1, 92);
  for (let count = 0; count <= tokens.length; count += 1) {
    expect(kvKey(epoch, inside, count)).toBe(kvKey(epoch, tokens, count));
  }
});

test("kvKey: a count beyond the tokens is a bug", () => {
  expect(() => kvKey(epoch, Int32Array.of(1), 2)).toThrow("0 <= count");
});
