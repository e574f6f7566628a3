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

/** Factors of a step's time by other load on the machine. */
const LOADS: Readonly<Record<string, (step: number, chance: number) => number>> = {
  "one step in three takes 2.6 times as long": (_step, chance) => (chance < 1 / 3 ? 2.6 : 1),
  "every step is a little longer or shorter": (_step, chance) => 0.9 + 0.2 * chance,
  "steps get longer by a tenth": (step) => 1 + step / 20_000,
};

for (const [name, factorOf] of Object.entries(LOADS)) {
  test(`LearnedStepCost: what drafts add is known within 15 % where ${name}`, () => {
    const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES, 0));
    let state = 1;
    for (let step = 0; step < 2000; step += 1) {
      state = Math.imul(state, 48271) >>> 1 || 1;
      const rows = step % 3 === 0 ? 1 : 5;
      const factor = factorOf(step, (state % 1000) / 1000);
      cost.observe(1, rows, factor * (rows === 1 ? 2 : 5));
    }
    expect(cost.ms(1, 5) / cost.ms(1, 1) / 2.5).toBeGreaterThan(0.85);
    expect(cost.ms(1, 5) / cost.ms(1, 1) / 2.5).toBeLessThan(1.15);
    expect(cost.ms(1, 1)).toBeGreaterThan(0.85 * 2);
    expect(cost.ms(1, 1)).toBeLessThan(1.15 * 2);
  });
}

test("error: how far steps are from what is expected, however long a single one took", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES, 0));
  for (let i = 0; i < 500; i += 1) cost.observe(1, 1, 2);
  const learnt = cost.error;
  expect(learnt).toBeLessThan(0.02);
  cost.observe(1, 1, 1e6);
  expect(cost.error).toBeCloseTo(learnt + 0.02, 2);
  for (let i = 0; i < 500; i += 1) cost.observe(1, 1, i % 2 === 0 ? 1 : 3);
  expect(cost.error).toBeGreaterThan(0.3);
});
