import { expect, test } from "bun:test";
import { breakEvenAcceptance, DraftBudget, leastChosen } from "./budget.ts";
import { bestUniformGamma, expectedTokens, type StepTimes } from "./throughput.ts";

/** A GPU in the memory-bound range: rows are almost free. */
const memoryBound: StepTimes = { ms: (_batch, rows) => 10 + rows * 0.01 };
/** A CPU: every row costs the same. */
const computeBound: StepTimes = { ms: (_batch, rows) => rows };

test("expectedTokens: is the sum of the acceptance powers", () => {
  expect(expectedTokens(0.5, 2)).toBeCloseTo(1 + 0.5 + 0.25);
  expect(expectedTokens(1, 3)).toBe(4);
  expect(expectedTokens(0, 3)).toBe(1);
});

test("bestUniformGamma: drafts as much as allowed where rows are free, nothing where they are not", () => {
  expect(bestUniformGamma(memoryBound, { batch: 4, alpha: 0.9, gammaMax: 8 })).toBe(8);
  expect(bestUniformGamma(computeBound, { batch: 4, alpha: 0.9, gammaMax: 8 })).toBe(0);
});

test("breakEvenAcceptance: is the row's share of the step's time per token", () => {
  expect(breakEvenAcceptance(computeBound, 8)).toBeCloseTo(1);
  expect(breakEvenAcceptance(memoryBound, 1)).toBeLessThan(0.01);
});

test("budget: is off where a row costs as much as a token", () => {
  const plan = new DraftBudget().plan({ high: 2, low: 14, stepMs: computeBound });
  expect(plan.low.tokensMax).toBe(0);
});

test("budget: the high class may take less likely tokens than the low one in a mixed batch", () => {
  const times: StepTimes = { ms: (batch, rows) => batch + (rows - batch) * 0.5 };
  const { high, low } = new DraftBudget().plan({ high: 2, low: 6, stepMs: times });
  expect(high.probabilityMin).toBeLessThan(low.probabilityMin);
  expect(high.tokensMax).toBeGreaterThan(0);
});

test("budget: drafts trees only where a fork's second branch can pay", () => {
  expect(new DraftBudget().plan({ high: 1, low: 0, stepMs: memoryBound }).high.tree).toBe(true);
  const times: StepTimes = { ms: (batch, rows) => batch + (rows - batch) * 0.5 };
  expect(new DraftBudget().plan({ high: 1, low: 0, stepMs: times }).high.tree).toBe(false);
});

test("budget: an empty batch has no plan", () => {
  expect(new DraftBudget().plan({ high: 0, low: 0, stepMs: memoryBound }).high.tokensMax).toBe(0);
});

test("leastChosen: takes what makes the engine fastest, also where the first rows are free and later ones are not", () => {
  const times: StepTimes = { ms: (_batch, rows) => (rows <= 3 ? 15 : 15 + 3 * (rows - 3)) };
  const probabilities = [0.9, 0.8, 0.7, 0.62, 0.55, 0.5, 0.44, 0.4];
  // Two rows are free. A fourth makes 4.02 tokens in 21 ms, faster than 3.4 in 18; a fifth is slower.
  expect(leastChosen(Float32Array.from(probabilities), 1, times)).toBeCloseTo(0.62);
  expect(leastChosen(Float32Array.from(probabilities), 1, memoryBound)).toBeCloseTo(0.4);
});

test("leastChosen: takes nothing where all together gain too little", () => {
  expect(leastChosen(new Float32Array(9).fill(0.99), 8, computeBound)).toBe(
    Number.POSITIVE_INFINITY,
  );
  expect(leastChosen(new Float32Array(0), 8, memoryBound)).toBe(Number.POSITIVE_INFINITY);
});
