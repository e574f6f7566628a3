import { expect, test } from "bun:test";
import { LateDrafts } from "./late-drafts.ts";

/** Two paths: 4 5 6 7, and the less likely 8. */
const TABLE = {
  known: 3,
  tokens: Int32Array.of(4, 5, 6, 7, 8),
  parents: Int32Array.of(-1, 0, 1, 2, -1),
  probabilities: Float32Array.of(0.5, 0.45, 0.4, 0.1, 0.2),
};

function drafted(since: readonly number[], probabilityMin = 0): number[] {
  const drafts = new LateDrafts();
  drafts.begin(1);
  const response = Int32Array.of(1, 2, 3, ...since);
  const request = { table: TABLE, response, at: response.length };
  drafts.add(request, { tokensMax: 3, probabilityMin });
  return [...drafts.tokens.subarray(0, drafts.start[1])];
}

test("late drafts: the walk follows the tokens since, then the likeliest children", () => {
  expect(drafted([])).toEqual([4, 5, 6]);
  expect(drafted([4])).toEqual([5, 6, 7]);
  expect(drafted([4, 5])).toEqual([6, 7]);
  expect(drafted([8])).toEqual([]);
});

test("late drafts: a walk that leaves the tree goes on where the same token is", () => {
  expect(drafted([9, 5])).toEqual([6, 7]);
  expect(drafted([9])).toEqual([]);
});

test("late drafts: what is less likely, given the tokens since, is not drafted", () => {
  // 0.4 and 0.1, of 0.45.
  expect(drafted([4, 5], 0.5)).toEqual([6]);
  expect(drafted([4, 5], 0.2)).toEqual([6, 7]);
});
