// The soak at its smallest: every response comes whole, whoever vanishes beside it, and nothing stays in flight.

import { expect, test } from "bun:test";
import { soak } from "./soak.ts";
import { trendOf } from "./trend.ts";

test("soak: nothing is lost while clients vanish", async () => {
  const run = await soak({ minutes: 3 / 60, clients: 24, group: 4, tokensMax: 12 });
  expect(run.problems).toEqual([]);
  expect(run.tally.responses).toBeGreaterThan(0);
  expect(run.tally.vanished).toBeGreaterThan(0);
  expect(run.samples.length).toBeGreaterThan(0);
  expect(run.afterwards.live).toBe(0);
}, 120_000);

test("trend: the slope of a line is found, and its interval holds it", () => {
  const points = Array.from({ length: 40 }, (_, i) => ({ x: i, y: 7 + 3 * i + (i % 2) }));
  const trend = trendOf(points);
  expect(trend?.slope).toBeCloseTo(3, 2);
  expect(trend?.low).toBeLessThan(3);
  expect(trend?.high).toBeGreaterThan(3);
});

test("trend: two points, or one place, have none", () => {
  expect(
    trendOf([
      { x: 1, y: 1 },
      { x: 2, y: 2 },
    ]),
  ).toBeNull();
  expect(trendOf(Array.from({ length: 9 }, (_, y) => ({ x: 1, y })))).toBeNull();
});
