import { expect, test } from "bun:test";
import { ratioInterval, speedUp } from "./cell.ts";

const RESULT = { accepted_plus_1: 2.5, drafted_per_step: 4, us_per_token: 0 };

test("speedUp: all accepted tokens where rows are free, none where a row costs a step", () => {
  expect(speedUp(RESULT, { batch: 64, stepMs: 20, rowUs: 0 })).toBeCloseTo(2.5, 9);
  // Every one of the 5 rows costs as much as a step: 2.5 tokens in 5 steps.
  expect(speedUp(RESULT, { batch: 1, stepMs: 1, rowUs: 1000 })).toBeCloseTo(0.5, 9);
});

test("speedUp: drafting takes time of every token that is generated", () => {
  const result = { ...RESULT, us_per_token: 4 };
  // 100 requests of 2.5 tokens at 4 us are 1 ms of a step of 10.
  expect(speedUp(result, { batch: 100, stepMs: 10, rowUs: 0 })).toBeCloseTo(25 / 11, 9);
});

test("interval: that of the normal approximation, where groups weigh by their steps", () => {
  // Values 0, 0.5, ..., 2 eight times each: mean 1, standard error sqrt(0.5 / 40) = 0.112.
  const mixed = Array.from({ length: 40 }, (_, i) => ({ accepted: i % 5, steps: 2 }));
  const [low, high] = ratioInterval(mixed) ?? [0, 0];
  expect(low).toBeCloseTo(2 - 1.96 * 0.113, 2);
  expect(high).toBeCloseTo(2 + 1.96 * 0.113, 2);
  const [heavy] = ratioInterval([...mixed, { accepted: 0, steps: 10_000 }]) ?? [2];
  expect(heavy).toBeLessThan(1.01);
  expect(
    ratioInterval([
      { accepted: 1, steps: 2 },
      { accepted: 0, steps: 0 },
    ]),
  ).toBeNull();
});
