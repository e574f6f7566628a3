import { expect, test } from "bun:test";
import { CONTEXT, keysOf, mixed } from "./followers.ts";
import { LateDrafts } from "./late-drafts.ts";

/** Two paths: 4 5 6 7, and the less likely 8. */
const TABLE = {
  known: 3,
  tokens: Int32Array.of(4, 5, 6, 7, 8),
  parents: Int32Array.of(-1, 0, 1, 2, -1),
  probabilities: Float32Array.of(0.5, 0.45, 0.4, 0.1, 0.2),
};
const KEYS = keysOf(7, 2);

function drafted(since: readonly number[], probabilityMin = 0, told: number[][] = []): number[] {
  const drafts = new LateDrafts();
  for (const text of told) {
    for (let i = CONTEXT; i < text.length; i += 1) {
      drafts.followers.take(keysOf(7, 0), text.slice(i - CONTEXT, i), text[i] ?? 0);
    }
  }
  drafts.begin(1);
  const response = Int32Array.of(1, 2, 3, ...since);
  const tail = [...response.subarray(-CONTEXT)];
  const request = { table: TABLE, response, at: response.length, keys: KEYS, tail };
  drafts.add(request, { tokensMax: 3, probabilityMin });
  return [...drafts.tokens.subarray(0, drafts.start[1])];
}

test("late drafts: the walk follows the tokens since, then the likeliest children", () => {
  expect(drafted([])).toEqual([4, 5, 6]);
  expect(drafted([4])).toEqual([5, 6, 7]);
  expect(drafted([4, 5])).toEqual([6, 7]);
  expect(drafted([8])).toEqual([]);
});

test("late drafts: outside of the tree the walk goes on with what followed in the group", () => {
  const told = [[1, 2, 9, 5, 30, 31, 32]];
  expect(drafted([9, 5], 0, told)).toEqual([30, 31, 32]);
  expect(drafted([4, 5], 0, [[5, 6, 7, 20, 21]])).toEqual([6, 7, 20]);
  // What came twice stays for one token more.
  const often = [...told, ...told, [1, 2, 9, 5, 40]];
  expect(drafted([9, 5], 0, often)).toEqual([30, 31, 32]);
  expect([drafted([9], 0, told), drafted([77], 0, told)]).toEqual([[5, 30, 31], []]);
});

test("followers: contexts are where the plugin has them", () => {
  // native/foretoken_vllm/tests/test_tables.py has the same number.
  expect(mixed(mixed(7, 123_456), 1)).toBe(534169118);
});

test("late drafts: what is less likely, given the tokens since, is not drafted", () => {
  // 0.4 and 0.1, of 0.45.
  expect(drafted([4, 5], 0.5)).toEqual([6]);
  expect(drafted([4, 5], 0.2)).toEqual([6, 7]);
});
