import { expect, test } from "bun:test";
import type { StepTimes } from "../../../src/core/draft/draft-length.ts";
import {
  bestUniformGamma,
  breakEvenAcceptance,
  marginalBenefitLengths,
  planDrafts,
} from "./draft-budget.ts";

const chances = Float64Array.of(0.2, 0.5, 0.8, 0.95);
/** A GPU in the memory-bound range: rows are almost free. */
const memoryBound: StepTimes = { ms: (_batch, rows) => 10 + rows * 0.01 };
/** A CPU: every row costs the same. */
const computeBound: StepTimes = { ms: (_batch, rows) => rows };

test("bestUniformGamma: drafts as much as allowed where rows are free, nothing where they are not", () => {
  expect(bestUniformGamma(memoryBound, { batch: 4, alpha: 0.9, gammaMax: 8 })).toBe(8);
  expect(bestUniformGamma(computeBound, { batch: 4, alpha: 0.9, gammaMax: 8 })).toBe(0);
});

test("breakEvenAcceptance: is the row's share of the step's time per token", () => {
  expect(breakEvenAcceptance(computeBound, 8)).toBeCloseTo(1);
  expect(breakEvenAcceptance(memoryBound, 1)).toBeLessThan(0.01);
});

test("budget: is off where a row costs as much as a token", () => {
  const plan = planDrafts({ high: 2, low: 14, chances, stepMs: computeBound });
  expect(plan.low.tokensMax).toBe(0);
});

test("budget: the high class may take less likely tokens than the low one in a mixed batch", () => {
  const times: StepTimes = { ms: (batch, rows) => batch + (rows - batch) * 0.5 };
  const { high, low } = planDrafts({ high: 2, low: 6, chances, stepMs: times });
  expect(high.probabilityMin).toBeLessThan(low.probabilityMin);
  expect(high.tokensMax).toBeGreaterThan(0);
});

const acceptance = (position: number) => 0.7 ** position;
const GAMMA_MAX = 8;

test("mba: never hands out more than gamma* tokens a request, nor more than gamma_max to a class", () => {
  for (let high = 0; high <= 5; high += 1) {
    for (let low = 0; low <= 5; low += 1) {
      for (let gammaUniform = 0; gammaUniform <= 12; gammaUniform += 1) {
        const input = { high, low, gammaUniform, acceptance, gammaMax: GAMMA_MAX };
        const lengths = marginalBenefitLengths(input);
        const used = high * lengths.high + low * lengths.low;
        expect(used).toBeLessThanOrEqual(gammaUniform * (high + low));
        expect(Math.max(lengths.high, lengths.low)).toBeLessThanOrEqual(GAMMA_MAX);
        // The class that the iteration waits for drafts as deep as the other; alone, a class gets all.
        if (high === low) expect(lengths.high).toBeGreaterThanOrEqual(lengths.low);
        if (high === 0 && low > 0) expect(lengths.low).toBe(Math.min(gammaUniform, GAMMA_MAX));
      }
    }
  }
});
