import { expect, test } from "bun:test";
import { LengthHistory } from "./length-history.ts";

test("length history: a prior is the longest response of the latest earlier epoch", () => {
  const history = new LengthHistory();
  expect(history.prior(1)).toBeNull();
  history.finished(1, 40);
  history.finished(1, 90);
  expect(history.prior(1)).toBeNull();
  history.advance();
  expect(history.prior(1)).toBe(90);
  history.finished(1, 10);
  expect(history.prior(1)).toBe(90);
  history.advance();
  history.advance();
  expect(history.prior(1)).toBe(10);
  expect(history.prior(2)).toBeNull();
});

test("length history: the prompt used longest ago goes first", () => {
  const history = new LengthHistory(2);
  for (const key of [1, 2]) history.finished(key, key * 10);
  history.advance();
  expect(history.prior(1)).toBe(10);
  history.finished(3, 30);
  expect(history.prior(2)).toBeNull();
  expect(history.prior(1)).toBe(10);
  expect(history.prompts).toBe(2);
});
