import { expect, test } from "bun:test";
import { type MbaInput, marginalBenefitLengths } from "./draft-budget.ts";

const geometric = (alpha: number) => (position: number) => alpha ** position;

function input(overrides: Partial<MbaInput>): MbaInput {
  return {
    high: 2,
    low: 6,
    gammaUniform: 3,
    acceptance: geometric(0.7),
    gammaMax: 8,
    ...overrides,
  };
}

test("mba: is off when the budget does not give every high request one token", () => {
  expect(marginalBenefitLengths(input({ gammaUniform: 0 }))).toEqual({ high: 0, low: 0 });
});

test("mba: never hands out more than gamma* tokens a request, nor more than gamma_max to a class", () => {
  for (let high = 0; high <= 5; high += 1) {
    for (let low = 0; low <= 5; low += 1) {
      for (let gammaUniform = 0; gammaUniform <= 12; gammaUniform += 1) {
        const lengths = marginalBenefitLengths(input({ high, low, gammaUniform }));
        const used = high * lengths.high + low * lengths.low;
        expect(used).toBeLessThanOrEqual(gammaUniform * (high + low));
        expect(Math.max(lengths.high, lengths.low)).toBeLessThanOrEqual(8);
      }
    }
  }
});

test("mba: the high class drafts at least as deep as the low one", () => {
  for (let gammaUniform = 1; gammaUniform <= 8; gammaUniform += 1) {
    const lengths = marginalBenefitLengths(input({ high: 4, low: 4, gammaUniform }));
    expect(lengths.high).toBeGreaterThanOrEqual(lengths.low);
  }
});

test("mba: with no high requests the low class gets the whole budget", () => {
  expect(marginalBenefitLengths(input({ high: 0, low: 4, gammaUniform: 3 }))).toEqual({
    high: 0,
    low: 3,
  });
});
