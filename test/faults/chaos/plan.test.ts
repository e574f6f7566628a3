import { expect, test } from "bun:test";
import { CHAOS_KINDS, planChaos, planOneOfMany } from "./plan.ts";

test("plan: a seed repeats itself, and every kind is drawn", () => {
  expect(planChaos(7, CHAOS_KINDS)).toEqual(planChaos(7, CHAOS_KINDS));
  const plans = Array.from({ length: 100 }, (_, seed) => planChaos(seed, CHAOS_KINDS));
  const kinds = plans.flatMap(({ faults }) => faults.map(({ kind }) => kind));
  expect(new Set(kinds)).toEqual(new Set(CHAOS_KINDS));
  for (const { faults } of plans) {
    expect(faults.map(({ share }) => share).toSorted((a, b) => a - b)).toEqual(
      faults.map(({ share }) => share),
    );
  }
});

test("plan: only the kinds that are asked for, and one death where one is due", () => {
  const { faults } = planChaos(3, ["link_cut"]);
  expect(new Set(faults.map(({ kind }) => kind))).toEqual(new Set(["link_cut"]));
  expect(planOneOfMany(1, 5, false).faults).toEqual([]);
  expect(planOneOfMany(1, 5, true).faults.map(({ kind }) => kind)).toEqual(["worker_kill"]);
});
