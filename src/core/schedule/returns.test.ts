// How long KV of paused sessions is kept, by the gaps that were seen.

import { expect, test } from "bun:test";
import { Returns } from "./returns.ts";

/** Log-normal around `ms`, spread evenly over its quantiles. */
function come(returns: Returns, ms: number, tool: string | null = null): void {
  for (let i = 1; i < 64; i += 1) returns.came(ms * (i / (64 - i)) ** (0.3 / 1.702), tool);
}

test("returns: KV is kept for the time of most gaps, and at most for the time of computing it again", () => {
  const returns = new Returns();
  const keepMs = (recomputeMs: number, cost = 1, tool: string | null = null) =>
    returns.keepMs({ recomputeMs, cost, tool });
  expect(keepMs(700)).toBe(700);
  come(returns, 200);
  expect(keepMs(5_000)).toBeGreaterThan(300);
  expect(keepMs(5_000)).toBeLessThan(600);
  // KV that is computed again in almost no time is not kept.
  expect(keepMs(5_000, 1 / 1000)).toBe(0);
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
  const kept = (tool: string | null) => returns.keepMs({ recomputeMs: 2_000, cost: 1, tool });
  expect(kept("build")).toBe(0);
  expect(kept("search")).toBeGreaterThan(120);
  expect(kept("search")).toBeLessThan(1_000);
  expect(kept("unknown")).toBe(kept(null));
});
