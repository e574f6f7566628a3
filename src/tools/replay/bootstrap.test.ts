import { expect, test } from "bun:test";
import { bootstrapRatio } from "./cell.ts";

const mixed = Array.from({ length: 40 }, (_, i) => ({ numerator: i % 5, denominator: 2 }));

test("bootstrap: the interval of a mean is that of the normal approximation", () => {
  // Values 0, 0.5, ..., 2 eight times each: mean 1, standard error sqrt(0.5 / 40) = 0.112.
  const [low, high] = bootstrapRatio(mixed) ?? [0, 0];
  expect(low).toBeCloseTo(1 - 1.96 * 0.112, 1);
  expect(high).toBeCloseTo(1 + 1.96 * 0.112, 1);
});

test("bootstrap: a group weighs by its denominator", () => {
  const heavy = [...mixed, { numerator: 0, denominator: 10_000 }];
  const [low] = bootstrapRatio(heavy) ?? [1];
  expect(low).toBeLessThan(0.01);
});

test("bootstrap: below two groups that count there is no interval", () => {
  const empty = { numerator: 0, denominator: 0 };
  expect(bootstrapRatio([])).toBeNull();
  expect(bootstrapRatio([{ numerator: 1, denominator: 2 }, empty])).toBeNull();
});
