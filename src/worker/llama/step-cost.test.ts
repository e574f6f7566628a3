import { expect, test } from "bun:test";
import { LearnedStepCost, ProfiledStepCost, profileSteps } from "./step-cost.ts";

const SAMPLES = [
  { batch: 1, rows: 1, ms: 1 },
  { batch: 1, rows: 5, ms: 3 },
  { batch: 4, rows: 4, ms: 2 },
  { batch: 4, rows: 20, ms: 10 },
];

test("ms: a measured step costs what was measured", () => {
  const cost = new ProfiledStepCost(SAMPLES, 0);
  for (const { batch, rows, ms } of SAMPLES) expect(cost.ms(batch, rows)).toBeCloseTo(ms, 9);
});

test("ms: between and beyond measurements it is linear in rows, and between batches in the batch", () => {
  const cost = new ProfiledStepCost(SAMPLES, 0);
  expect(cost.ms(1, 3)).toBeCloseTo(2, 9);
  expect(cost.ms(1, 9)).toBeCloseTo(5, 9);
  expect(cost.ms(2, 2)).toBeCloseTo(1 + 1 / 3, 9);
  expect(cost.ms(8, 8)).toBeCloseTo(4, 9);
});

test("ms: a batch measured without drafts takes its rows' cost from the others", () => {
  const cost = new ProfiledStepCost([...SAMPLES, { batch: 8, rows: 8, ms: 3 }], 0);
  expect(cost.ms(8, 16)).toBeGreaterThan(cost.ms(8, 8));
});

test("ms: a measurement that dips with more rows is taken as noise", () => {
  const dip = [
    { batch: 1, rows: 1, ms: 2 },
    { batch: 1, rows: 2, ms: 1 },
  ];
  expect(new ProfiledStepCost(dip, 0).ms(1, 2)).toBe(2);
});

test("branchMs: is proportional to the tokens copied", () => {
  expect(new ProfiledStepCost(SAMPLES, 0.5).branchMs(10)).toBe(5);
});

/** An engine whose step takes 1 ms and 0.1 ms a row, on a clock that only steps move. */
function newProbe(slots: number) {
  let nowMs = 0;
  const asked: string[] = [];
  return {
    asked,
    slots,
    rowsMax: 100,
    nowMs: () => nowMs,
    stepMs(batch: number, rowsPerSequence: number): number {
      const ms = 1 + batch * rowsPerSequence * 0.1;
      nowMs += ms;
      asked.push(`${batch}x${rowsPerSequence}`);
      return ms;
    },
    branchMsPerToken: () => 0.01,
  };
}

test("profileSteps: measures the grid and predicts it", () => {
  const probe = newProbe(6);
  const cost = profileSteps(probe, 1e6);
  expect(cost.ms(6, 6)).toBeCloseTo(1.6, 9);
  expect(cost.ms(2, 18)).toBeCloseTo(2.8, 9);
  expect(probe.asked).not.toContain("6x17");
});

test("profileSteps: keeps to its time, plain steps first", () => {
  const probe = newProbe(16);
  profileSteps(probe, 40);
  expect(probe.nowMs()).toBeLessThan(60);
  for (const batch of [1, 2, 4, 8, 16]) expect(probe.asked).toContain(`${batch}x1`);
});

test("LearnedStepCost: takes on what plain steps and draft rows really cost", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES, 0));
  expect(cost.ms(1, 5)).toBeCloseTo(3, 9);
  for (let i = 0; i < 400; i += 1) cost.observe(1, 1, 2);
  expect(cost.ms(1, 1)).toBeCloseTo(2, 2);
  // Drafts of 4 tokens were profiled at 2 ms, and really add 6.
  for (let i = 0; i < 400; i += 1) cost.observe(1, 5, 8);
  expect(cost.ms(1, 5)).toBeCloseTo(8, 1);
  expect(cost.ms(1, 1)).toBeCloseTo(2, 2);
});

test("LearnedStepCost: one step in which the machine slept hardly counts, and time never turns negative", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES, 0));
  cost.observe(1, 1, 5000);
  expect(cost.ms(1, 1)).toBeLessThan(1.1);
  for (let i = 0; i < 400; i += 1) cost.observe(1, 5, 0.001);
  expect(cost.ms(1, 5)).toBeGreaterThan(cost.ms(1, 1));
});
