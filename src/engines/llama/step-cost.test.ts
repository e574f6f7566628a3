import { expect, test } from "bun:test";
import { ConstantLength } from "../../core/draft/draft-length.ts";
import { StepSpeculation } from "./speculation.ts";
import {
  baseRowsOf,
  draftsPay,
  LearnedStepCost,
  ProfiledStepCost,
  profileSteps,
} from "./step-cost.ts";

const SAMPLES = [
  { rows: 1, ms: 1 },
  { rows: 5, ms: 3 },
  { rows: 17, ms: 9 },
];

test("ms: what was measured, between and beyond it linear in rows, whoever they belong to", () => {
  const cost = new ProfiledStepCost(SAMPLES.toReversed());
  for (const { rows, ms } of SAMPLES) expect(cost.ms(1, rows)).toBeCloseTo(ms, 9);
  expect(cost.ms(1, 3)).toBeCloseTo(2, 9);
  expect(cost.ms(3, 3)).toBeCloseTo(2, 9);
  expect(cost.ms(1, 11)).toBeCloseTo(6, 9);
  expect(cost.ms(1, 33)).toBeCloseTo(17, 9);
});

test("profileSteps: with hardly any time it measures what drafting is decided by, once", () => {
  let nowMs = 0;
  const asked: number[] = [];
  const stepMs = (rows: number) => {
    asked.push(rows);
    nowMs += 1 + rows * 0.1;
    return 1 + rows * 0.1;
  };
  profileSteps(stepMs, { clock: { nowMs: () => nowMs }, budgetMs: 1 });
  expect(asked).toEqual([1, 1, 2, 4, 8, 16]);
});

test("LearnedStepCost: takes on what plain steps and draft rows really cost", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES));
  expect(cost.ms(1, 5)).toBeCloseTo(3, 9);
  for (let i = 0; i < 400; i += 1) cost.observe(1, 1, 2);
  expect(cost.ms(1, 1)).toBeCloseTo(2, 2);
  // Drafts of 4 tokens were profiled at 2 ms, and really add 6.
  for (let i = 0; i < 400; i += 1) cost.observe(1, 5, 8);
  expect(cost.ms(1, 5)).toBeCloseTo(8, 1);
  expect(cost.ms(1, 1)).toBeCloseTo(2, 2);
});

test("LearnedStepCost: one step in which the machine slept hardly counts, and time never turns negative", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES));
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
    const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES));
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
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES));
  for (let i = 0; i < 500; i += 1) cost.observe(1, 1, 2);
  const learnt = cost.error;
  expect(learnt).toBeLessThan(0.02);
  cost.observe(1, 1, 1e6);
  expect(cost.error).toBeCloseTo(learnt + 0.02, 2);
  for (let i = 0; i < 500; i += 1) cost.observe(1, 1, i % 2 === 0 ? 1 : 3);
  expect(cost.error).toBeGreaterThan(0.3);
});

test("LearnedStepCost: plain steps count for draft rows too, and one among steps with drafts for all of them", () => {
  const cost = new LearnedStepCost(new ProfiledStepCost(SAMPLES));
  const plainMs = cost.ms(1, 1);
  const draftMs = cost.ms(1, 5);
  for (let i = 0; i < 300; i += 1) cost.observe(1, 1, 2 * plainMs);
  expect(cost.ms(1, 5)).toBeCloseTo(2 * draftMs, 1);
  for (let i = 0; i < 16; i += 1) cost.observe(1, 5, 2 * draftMs);
  cost.observe(1, 1, 3 * plainMs);
  expect(cost.ms(1, 1)).toBeGreaterThan(2.5 * plainMs);
});

test("baseRowsOf: 8 ms and 2 ms a row are 4 rows", () => {
  expect(baseRowsOf({ ms: (_, rows) => 8 + 2 * rows })).toBeCloseTo(4);
  expect(baseRowsOf({ ms: () => 8 })).toBe(Number.MAX_SAFE_INTEGER);
});

test("draftsPay: where rows are cheap in steps of some requests, not by a line through all of them", () => {
  // A second row costs more than the first, and from there six cost what two do.
  const kernels = { ms: (_batch: number, rows: number) => (rows === 1 ? 4 : 10 + rows / 4) };
  expect([draftsPay(kernels, 8), draftsPay(kernels, 1)]).toEqual([true, false]);
  const line = (base: number) => ({ ms: (_batch: number, rows: number) => base + rows });
  expect([1, 3, 4, 8].map((base) => draftsPay(line(base), 8))).toEqual([false, false, true, true]);
});

test("Speculation: the step after sixteen with drafts has none", () => {
  const drafter = {
    has: () => true,
    propose: () => ({
      start: Int32Array.of(0, 1),
      tokens: Int32Array.of(7),
      parents: Int32Array.of(-1),
      probabilities: Float32Array.of(1),
    }),
  };
  const rest = { planner: new ConstantLength(), clock: { nowMs: () => 0 } };
  const speculation = new StepSpeculation({ drafter, ...rest });
  const sequence = { draft: {}, chunkEnd: 9, length: 1, priority: "low" };
  const lengths = Array.from({ length: 35 }, () => {
    speculation.propose([sequence as never], 8, { ms: () => 1 });
    return speculation.length;
  });
  expect(lengths.flatMap((length, i) => (length === 0 ? [i] : []))).toEqual([16, 33]);
});
