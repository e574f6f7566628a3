import { expect, test } from "bun:test";
import { ratioOf } from "./statistics.ts";

test("ratioOf: geometric mean of the rounds' ratios, with a t interval of their logarithms", () => {
  const { mean, low, high, rounds } = ratioOf([2, 8], [1, 1]);
  expect(rounds).toEqual([2, 8]);
  expect(mean).toBeCloseTo(4);
  // One degree of freedom: 12.706 standard errors, each ln 2.
  expect(low).toBeCloseTo(4 / 2 ** 12.706);
  expect(high).toBeCloseTo(4 * 2 ** 12.706, -2);
});

test("ratioOf: one round has no interval", () => {
  expect(ratioOf([3], [2])).toEqual({ mean: 1.5, low: null, high: null, rounds: [1.5] });
});
