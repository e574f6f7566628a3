import { expect, test } from "bun:test";
import { speedUp } from "./cell.ts";

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
