// How long KV of paused sessions is kept, by the gaps that were seen.

import { expect, test } from "bun:test";
import { Returns } from "./returns.ts";

/** Log-normal around `ms`, spread evenly over its quantiles. */
function come(returns: Returns, ms: number, tool: string | null = null): void {
  for (let i = 1; i < 64; i += 1) returns.came(ms * (i / (64 - i)) ** (0.3 / 1.702), tool);
}

test("returns: the KV retention time covers most tool gaps, and never exceeds the time at which recomputing is cheaper", () => {
  const returns = new Returns();
  const keepMs = (worthMs: number, backPart = 8 / 9) =>
    returns.keepMs({ worthMs, backPart, tool: null });
  expect(keepMs(900)).toBe(800);
  expect(keepMs(900, 1 / 9)).toBe(100);
  come(returns, 200);
  expect(keepMs(5_000)).toBeGreaterThan(300);
  expect(keepMs(5_000)).toBeLessThan(600);
  // Neither is KV kept that is computed again in almost no time, nor that of sessions most of which have ended.
  expect(keepMs(5)).toBe(0);
  expect(keepMs(5_000, 1 / 100)).toBe(0);
  // Older gaps fade: nobody waits for those who are away for a minute.
  for (let i = 0; i < 4; i += 1) come(returns, 60_000);
  expect(keepMs(5_000)).toBe(0);
});

test("returns: a tool's own gaps count where the request names it", () => {
  const returns = new Returns();
  for (let i = 0; i < 8; i += 1) {
    come(returns, 100, "search");
    come(returns, 30_000, "build");
  }
  const kept = (tool: string | null) => returns.keepMs({ worthMs: 2_000, backPart: 8 / 9, tool });
  expect(kept("build")).toBe(0);
  expect(kept("search")).toBeGreaterThan(120);
  expect(kept("search")).toBeLessThan(1_000);
  expect(kept("unknown")).toBe(kept(null));
});
