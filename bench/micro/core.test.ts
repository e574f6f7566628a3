// The benches run, at their smallest size; what they measure there means nothing.

import { expect, test } from "bun:test";
import { ratioTable } from "../harness.ts";
import { coreBenches, SMOKE } from "./core.ts";

test("bench: every measurement is a positive number and has its line", async () => {
  const measurements = await coreBenches(SMOKE);
  expect(measurements.length).toBeGreaterThan(15);
  for (const { name, value, baselines } of measurements) {
    for (const figure of [value, ...Object.values(baselines)]) {
      expect([name, figure > 0 && Number.isFinite(figure)]).toEqual([name, true]);
    }
  }
  const lines = ratioTable(measurements).split("\n");
  for (const { name } of measurements)
    expect(lines.some((line) => line.startsWith(name))).toBe(true);
});
