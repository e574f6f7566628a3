import { expect, test } from "bun:test";
import { uniformAt } from "../../core/base/hash.ts";
import { Acceptance } from "./acceptance.ts";

const KEY = { hi: 1, lo: 2 };

/** Feeds drafts whose tokens are each accepted with probability `alpha` given the one before. */
function feed(acceptance: Acceptance, options: { alpha: number; drafts: number; length: number }) {
  let draw = 0;
  for (let i = 0; i < options.drafts; i += 1) {
    let accepted = true;
    for (let position = 1; position <= options.length; position += 1) {
      accepted = accepted && uniformAt(KEY, draw) < options.alpha;
      draw += 1;
      acceptance.observe(position, options.alpha ** position, accepted);
    }
  }
}

test("acceptance: learns the rate per token from drafts that stop at the first refusal", () => {
  const acceptance = new Acceptance(8);
  feed(acceptance, { alpha: 0.8, drafts: 2000, length: 6 });
  expect(acceptance.rate).toBeCloseTo(0.8, 1);
});

test("acceptance: learns the probability of each position, and it never rises", () => {
  const acceptance = new Acceptance(8);
  feed(acceptance, { alpha: 0.8, drafts: 2000, length: 6 });
  for (let position = 1; position <= 6; position += 1) {
    expect(Math.abs(acceptance.through(position) - 0.8 ** position)).toBeLessThan(0.05);
    expect(acceptance.through(position)).toBeLessThanOrEqual(acceptance.through(position - 1));
  }
});

test("acceptance: with no evidence a probability is taken at its word", () => {
  const acceptance = new Acceptance(8);
  expect(acceptance.thresholdFor(0.5)).toBe(0.5);
  expect(acceptance.thresholdFor(1.01)).toBeGreaterThan(1);
});

test("acceptance: a drafter that promises too much meets a higher threshold", () => {
  const acceptance = new Acceptance(8);
  for (let i = 0; i < 4000; i += 1) {
    // Says 0.7, keeps 0.3.
    acceptance.observe(1, 0.72, uniformAt(KEY, i) < 0.3);
  }
  expect(acceptance.thresholdFor(0.6)).toBeGreaterThan(0.74);
});

test("acceptance: the rate is that of the tokens likely enough to be verified", () => {
  const acceptance = new Acceptance(8);
  acceptance.watch(0.5);
  for (let i = 0; i < 2000; i += 1) {
    acceptance.observe(1, 0.9, uniformAt(KEY, 2 * i) < 0.9);
    acceptance.observe(1, 0.1, uniformAt(KEY, 2 * i + 1) < 0.1);
  }
  expect(acceptance.rate).toBeCloseTo(0.9, 1);
});
