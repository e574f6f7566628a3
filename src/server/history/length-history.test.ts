import { expect, test } from "bun:test";
import { LengthHistory } from "./length-history.ts";

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
