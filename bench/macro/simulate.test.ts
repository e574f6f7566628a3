import { expect, test } from "bun:test";
import { WORKLOADS } from "../../src/tools/simulate/workload.ts";
import { measureSpeed, shapeOf } from "./simulate.ts";

test("simulate bench: runs at a small size", async () => {
  const { shape } = WORKLOADS.moonlight;
  const small = { ...WORKLOADS.moonlight, instances: 2, shape: { ...shape, groups: 10 } };
  for (const row of await measureSpeed([small])) expect(row.tokens).toBeGreaterThan(0);
});

test("simulate bench: equal responses within unequal groups correlate fully", () => {
  const { correlation } = shapeOf([
    [10, 10, 10],
    [100, 100, 100],
    [1000, 1000, 1000],
  ]);
  expect(correlation).toBeCloseTo(1, 6);
});
