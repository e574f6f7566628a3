import { describe, expect, test } from "bun:test";
import { bisect, isClose, refine, THRESHOLD_MIN } from "./threshold.ts";

/** A drafter that drafts -ln(threshold) tokens: 6.24 at most. */
function counted(drafted: (probabilityMin: number) => number = (p) => -Math.log(p)) {
  const asked: number[] = [];
  const run = async (probabilityMin: number) => {
    asked.push(probabilityMin);
    return drafted(probabilityMin);
  };
  return { run, asked };
}

const wide = { tolerance: 0.01, runsMax: 12 };

describe("bisect", () => {
  test("bisect: finds the threshold that drafts what is wanted", async () => {
    const { run, asked } = counted();
    const found = await bisect(run, { wanted: 4, ...wide });
    expect(isClose(found.drafted, 4, 0.01)).toBe(true);
    expect(found.probabilityMin).toBeCloseTo(Math.exp(-4), 3);
    expect(found.slope).toBeCloseTo(-1, 6);
    expect(asked.length).toBeLessThan(12);
  });

  test("bisect: halves the logarithm of the threshold", async () => {
    const { run, asked } = counted();
    await bisect(run, { wanted: 4, tolerance: 0, runsMax: 4 });
    const [lowest = 0, middle = 0, next = 0] = asked.map((p) => Math.log(p));
    expect(lowest).toBeCloseTo(Math.log(THRESHOLD_MIN), 12);
    expect(middle).toBeCloseTo(lowest / 2, 12);
    expect(next).toBeCloseTo(lowest * 0.75, 12);
  });

  test("bisect: a drafter that cannot draft as much is left at the lowest threshold, after one run", async () => {
    const { run, asked } = counted();
    const found = await bisect(run, { wanted: 9, ...wide });
    expect(found.probabilityMin).toBe(THRESHOLD_MIN);
    expect(found.drafted).toBeCloseTo(6.24, 2);
    expect(asked).toHaveLength(1);
  });

  test("bisect: where the count leaps over what is wanted, the nearer side is returned", async () => {
    const { run } = counted((p) => (p < 0.2 ? 6 : 3));
    const found = await bisect(run, { wanted: 4, ...wide });
    expect(found.drafted).toBe(3);
  });

  test("bisect: never runs more often than it may", async () => {
    const { run, asked } = counted();
    await bisect(run, { wanted: 4, tolerance: 0, runsMax: 5 });
    expect(asked).toHaveLength(5);
  });
});

describe("refine", () => {
  const start = { probabilityMin: Math.exp(-3), drafted: 4, slope: -1 };

  test("refine: moves from the sample's threshold to the whole's", async () => {
    const { run, asked } = counted((p) => -1.3 * Math.log(p));
    const found = await refine(run, start, { wanted: 4, tolerance: 0.001, runsMax: 4 });
    expect(isClose(found.drafted, 4, 0.001)).toBe(true);
    expect(asked.length).toBeLessThanOrEqual(3);
  });

  test("refine: one run is enough where the sample was like the whole", async () => {
    const { run, asked } = counted((p) => -(4 / 3) * Math.log(p));
    const found = await refine(run, start, { wanted: 4, tolerance: 0.01, runsMax: 4 });
    expect(found.probabilityMin).toBe(start.probabilityMin);
    expect(asked).toHaveLength(1);
  });

  test("refine: returns the closest of its runs, not the last", async () => {
    const counts = [4.2, 5, 9];
    const { run } = counted(() => counts.shift() ?? 0);
    const found = await refine(run, start, { wanted: 4, tolerance: 0.01, runsMax: 3 });
    expect(found.drafted).toBe(4.2);
    expect(found.probabilityMin).toBe(start.probabilityMin);
  });

  test("refine: an unknown slope ends after one run", async () => {
    const { run, asked } = counted(() => 1);
    await refine(run, { ...start, slope: 0 }, { wanted: 4, tolerance: 0.01, runsMax: 4 });
    expect(asked).toHaveLength(1);
  });
});
