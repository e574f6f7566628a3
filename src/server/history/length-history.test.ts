import { expect, test } from "bun:test";
import { LengthHistory, PROMPTS_MAX } from "./length-history.ts";

test("length history: the prompt used longest ago goes first", () => {
  const history = new LengthHistory();
  for (let key = 1; key <= PROMPTS_MAX; key += 1) history.finished(key, key * 10);
  history.advance();
  expect(history.prior(1)).toBe(10);
  history.finished(0, 30);
  expect(history.prior(2)).toBeNull();
  expect(history.prior(1)).toBe(10);
  expect([...history.latest()]).toHaveLength(PROMPTS_MAX);
});
