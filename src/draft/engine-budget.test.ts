import { expect, test } from "bun:test";
import { KV_USAGE_FULL, KV_USAGE_SCARCE, stepTokens } from "./engine-budget.ts";
import { STEP_TOKENS_UNBOUNDED } from "./service/limits.ts";

const ENGINE = { isLossless: true, running: 10, kvUsage: 0.5 };

test("stepTokens: an engine with room decides by itself", () => {
  expect(stepTokens(ENGINE)).toBe(STEP_TOKENS_UNBOUNDED);
  expect(stepTokens({ ...ENGINE, kvUsage: null })).toBe(STEP_TOKENS_UNBOUNDED);
});

test("stepTokens: an engine that verifies drafts wrongly gets none", () => {
  expect(stepTokens({ ...ENGINE, isLossless: false })).toBe(0);
});

test("stepTokens: fall with the KV that is left, to none", () => {
  const shares = [KV_USAGE_SCARCE, 0.92, 0.94, 0.96, KV_USAGE_FULL, 1];
  const found = shares.map((kvUsage) => stepTokens({ ...ENGINE, kvUsage }));
  expect(found).toEqual([80, 60, 40, 20, 0, 0]);
});
