// How long KV of paused sessions is kept, by the gaps that were seen.

import { expect, test } from "bun:test";
import { Returns } from "./returns.ts";

test("returns: KV is kept for the time of most gaps, and at most for the time of computing it again", () => {
  const returns = new Returns();
  expect(returns.keepMs(700, 1)).toBe(700);
  for (let i = 1; i <= 40; i += 1) returns.came(10 * i, 50);
  // All sessions come back soon. KV that is computed again in almost no time is not kept.
  expect(returns.keepMs(5_000, 1)).toBe(400);
  expect(returns.keepMs(5_000, 1 / 1000)).toBe(0);
  // The few that are away for a minute are not waited for.
  for (let i = 0; i < 4; i += 1) returns.came(60_000, 50);
  expect(returns.keepMs(5_000, 1)).toBe(400);
  // Gaps older than the last 64 do not count.
  for (let i = 0; i < 64; i += 1) returns.came(60_000, 50);
  expect(returns.keepMs(5_000, 1)).toBe(0);
});

test("returns: sessions grow by what they grew, as often as they come back", () => {
  const returns = new Returns();
  expect(returns.growthTokens).toBe(128);
  for (let i = 0; i < 20; i += 1) {
    returns.ended();
    returns.came(100, 40);
  }
  expect(returns.growthTokens).toBe(80);
  for (let i = 0; i < 24; i += 1) returns.ended();
  expect(returns.growthTokens).toBe(40);
});
