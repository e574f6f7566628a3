import { expect, test } from "bun:test";
import { equivalence } from "./equivalence.ts";

const base = [
  [0.2, 0.4],
  [0.3, 0.5],
  [0.1, 0.3],
];
const shifted = (by: readonly number[]) => base.map((run, i) => run.map((v) => v + (by[i] ?? 0)));

test("equivalence: runs that differ by less than the margin in every seed are equivalent", () => {
  const found = equivalence(base, shifted([0.01, -0.01, 0]), 0.05);
  expect(found.difference).toBeCloseTo(0, 9);
  // 2.92 * 0.01 / sqrt(3)
  expect(found.high).toBeCloseTo(0.01686, 4);
  expect(found.isEquivalent).toBe(true);
});

test("equivalence: a shift beyond the margin is not, nor is scatter that hides one", () => {
  expect(equivalence(base, shifted([0.06, 0.06, 0.06]), 0.05).isEquivalent).toBe(false);
  expect(equivalence(base, shifted([0.1, -0.1, 0]), 0.05).isEquivalent).toBe(false);
});

test("equivalence: one seed says nothing", () => {
  expect(equivalence([[1]], [[1]], 0.05)).toMatchObject({ low: null, isEquivalent: false });
});
