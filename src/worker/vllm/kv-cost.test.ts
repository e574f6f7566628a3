import { expect, test } from "bun:test";
import fc from "fast-check";
import { LinearCost, MoveJudge } from "./kv-cost.ts";

const line = (base: number, slope: number, lengths: readonly number[]): LinearCost => {
  const cost = new LinearCost();
  for (const tokens of lengths) cost.observe(tokens, base + slope * tokens);
  return cost;
};

test("LinearCost: finds a line from exact samples", () => {
  const cost = line(20, 0.1, [100, 500, 200, 1000]);
  expect(cost.predict(2000)).toBeCloseTo(220, 6);
  expect(cost.predict(0)).toBeCloseTo(20, 6);
});

test("LinearCost: knows nothing at first, and of one length that length", () => {
  expect(new LinearCost().predict(10)).toBe(null);
  expect(line(20, 0.1, [100, 100, 100]).predict(5000)).toBeCloseTo(30, 6);
});

test("LinearCost: one stall among many samples changes little", () => {
  const cost = line(20, 0.1, [100, 200, 300, 400, 500, 600, 700, 800, 900]);
  cost.observe(500, 60_000);
  expect(cost.predict(500) ?? 0).toBeLessThan(140);
});

test("LinearCost: forgets what was long ago", () => {
  const cost = line(
    0,
    1,
    Array<number>(100)
      .fill(50)
      .map((tokens, i) => tokens + i),
  );
  for (let i = 0; i < 400; i += 1) cost.observe(50 + (i % 100), 2 * (50 + (i % 100)));
  expect(cost.predict(100)).toBeCloseTo(200, 0);
});

test("LinearCost: is never negative and never falls with the tokens", () => {
  const sample = fc.tuple(
    fc.integer({ min: 0, max: 10_000 }),
    fc.double({ min: 0, max: 1e5, noNaN: true }),
  );
  fc.assert(
    fc.property(fc.array(sample, { minLength: 1, maxLength: 60 }), (samples) => {
      const cost = new LinearCost();
      for (const [tokens, ms] of samples) cost.observe(tokens, ms);
      const points = [0, 10, 1000, 20_000].map((tokens) => cost.predict(tokens) ?? -1);
      for (const [i, ms] of points.entries()) {
        expect(ms).toBeGreaterThanOrEqual(0);
        if (i > 0) expect(ms).toBeGreaterThanOrEqual((points[i - 1] ?? 0) - 1e-6 * ms);
      }
    }),
  );
});

const costs = (recomputeMs: number | null, moveMs: number | null) => ({
  savedTokens: 512,
  recomputeMs,
  moveMs,
});

test("MoveJudge: begins to move below four fifths of the cost, and stops at all of it", () => {
  const judge = new MoveJudge();
  expect(judge.choose(costs(100, 90))).toBe("recompute");
  expect(judge.choose(costs(100, 79))).toBe("kv");
  expect(judge.choose(costs(100, 99))).toBe("kv");
  expect(judge.choose(costs(100, 101))).toBe("recompute");
  expect(judge.choose(costs(100, 90))).toBe("recompute");
});

test("MoveJudge: nothing to save is never moved", () => {
  expect(new MoveJudge().choose({ ...costs(100, 1), savedTokens: 0 })).toBe("recompute");
});

test("MoveJudge: what is not known is tried, one at a time", () => {
  const judge = new MoveJudge();
  expect(judge.choose(costs(null, null))).toBe("explore");
  expect(judge.choose(costs(null, null))).toBe("recompute");
  judge.arrived();
  expect(judge.choose(costs(null, null))).toBe("explore");
});

test("MoveJudge: where recomputing is cheaper, one move in 32 is tried", () => {
  const judge = new MoveJudge();
  const chosen = Array.from({ length: 64 }, () => {
    const choice = judge.choose(costs(10, 100));
    if (choice === "explore") judge.arrived();
    return choice;
  });
  expect(chosen.filter((choice) => choice === "explore").length).toBe(2);
  expect(chosen.filter((choice) => choice === "kv").length).toBe(0);
});

test("MoveJudge: trials that find nothing become rarer", () => {
  const judge = new MoveJudge();
  const trials: number[] = [];
  for (let i = 0; i < 2000; i += 1) {
    if (judge.choose(costs(null, null)) !== "explore") continue;
    trials.push(i);
    judge.missed();
  }
  expect(trials.length).toBeLessThan(12);
  const pauses = trials.slice(3).map((at, i) => at - (trials[i + 2] ?? 0));
  expect(pauses).toEqual([...pauses].sort((a, b) => a - b));
});
