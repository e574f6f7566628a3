import { expect, test } from "bun:test";
import { Backoff } from "./backoff.ts";

const LIMITS = { firstMs: 100, msMax: 1000, goodMs: 5000, failuresMax: 6 };

test("next: pauses double up to the greatest, and then it is given up", () => {
  const backoff = new Backoff(LIMITS);
  const pauses = Array.from({ length: 7 }, () => backoff.next(0));
  expect(pauses).toEqual([100, 200, 400, 800, 1000, 1000, null]);
});

test("next: a run that was healthy for long makes up for those before it", () => {
  const backoff = new Backoff(LIMITS);
  backoff.next(0);
  backoff.next(0);
  expect(backoff.next(LIMITS.goodMs)).toBe(100);
  expect(backoff.next(LIMITS.goodMs - 1)).toBe(200);
});
