import { expect, test } from "bun:test";
import { sampleLengths } from "./lengths.ts";
import { WORKLOADS } from "./workload.ts";

const { shape } = WORKLOADS["qwen2-vl-72b"];

test("lengths: the mean and the cap are the workload's", () => {
  for (const { shape: wanted } of Object.values(WORKLOADS)) {
    const all = sampleLengths(wanted, 3).flat();
    const mean = all.reduce((sum, length) => sum + length, 0) / all.length;
    expect(Math.abs(mean / wanted.tokensMean - 1)).toBeLessThan(0.001);
    expect(Math.max(...all)).toBeLessThanOrEqual(wanted.tokensMax);
    expect(Math.min(...all)).toBeGreaterThanOrEqual(1);
  }
});

test("lengths: a seed gives the same lengths again, another seed others", () => {
  expect(sampleLengths(shape, 7)).toEqual(sampleLengths(shape, 7));
  expect(sampleLengths(shape, 7)).not.toEqual(sampleLengths(shape, 8));
});

test("lengths: responses of a group correlate as asked for", () => {
  // Far from the cap, so that it hides nothing.
  const wide = { ...shape, groups: 4000, tokensMax: 10_000_000 };
  const groups = sampleLengths(wide, 1).map((group) => group.map(Math.log));
  const size = shape.groupSize;
  const means = groups.map((group) => group.reduce((sum, x) => sum + x, 0) / size);
  const mean = means.reduce((sum, x) => sum + x, 0) / means.length;
  const between = means.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (means.length - 1);
  let within = 0;
  for (const [i, group] of groups.entries()) {
    for (const x of group) within += (x - (means[i] ?? 0)) ** 2;
  }
  within /= groups.length * (size - 1);
  const groupVariance = between - within / size;
  const correlation = groupVariance / (groupVariance + within);
  expect(Math.abs(correlation - shape.correlation)).toBeLessThan(0.05);
});
