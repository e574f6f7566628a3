// Which engines are believed when their canaries differ.

import { expect, test } from "bun:test";
import { weightEpoch } from "../core/base/ids.ts";
import { Agreement } from "./agreement.ts";

const canary = (by: number, tokens = [5, 6]) => ({ tokens, logprobs: [-1 - by, -2] });
const named = (...bodies: unknown[]) => bodies.map((body, i) => ({ name: `engine-${i}`, body }));
const isFenced = (problems: readonly (string | null)[]) => problems.map((one) => one !== null);

test("canaries: one of three that differs is named, with by how much", () => {
  const agreement = new Agreement();
  expect(agreement.compare(named(canary(0), canary(1.5), canary(0.001)))).toEqual([
    null,
    "its canary's logprobs differ by 1.500 from those of engine-0; 0.1 is allowed",
    null,
  ]);
  // The same of one that comes later or wakes up.
  expect(agreement.canaryDifference(canary(0.11))).toContain("differ by 0.110");
  expect(agreement.canaryDifference(canary(0.09))).toBeNull();
});

test("canaries: of two that differ the one that is as before is stale; else neither is believed", () => {
  const agreement = new Agreement();
  agreement.compare(named(canary(0), canary(0)));
  agreement.prepare(weightEpoch(1));
  expect(isFenced(agreement.compare(named(canary(0), canary(1))))).toEqual([true, false]);
  agreement.prepare(weightEpoch(1));
  const problems = agreement.compare(named(canary(2), canary(3)));
  expect(isFenced(problems)).toEqual([true, true]);
  expect(problems[0]).toContain("differ by 1.000 between engines");
});

test("canaries: each rank of an engine is compared; another process goes on with what is known of its epoch", () => {
  const first = new Agreement();
  const ranked = (...by: number[]) => ({ ...canary(0), ranks: by.map((one) => canary(one)) });
  expect(first.compare(named(ranked(0.001, 0.002), ranked(0, 2)))).toEqual([
    null,
    "its rank 2's canary's logprobs differ by 2.000 from those of engine-0; 0.1 is allowed",
  ]);
  first.prepare(weightEpoch(1));
  first.expect(canary(3));
  const next = (epoch: number, isOfEpoch: boolean) => {
    const agreement = new Agreement();
    const state = JSON.stringify(first.stateIn(weightEpoch(epoch)));
    agreement.restore(JSON.parse(state), isOfEpoch);
    return agreement;
  };
  expect(next(0, true).canaryDifference(canary(1))).toContain("1.000 from those of engine-0");
  expect([next(0, false).reference, next(1, true).reference]).toEqual([null, null]);
  expect(isFenced(next(1, false).compare(named(canary(0), canary(3))))).toEqual([true, false]);
  expect(isFenced(next(1, true).compare(named(canary(0))))).toEqual([true]);
  first.restore("damaged", true);
  expect(isFenced(first.compare(named(canary(0), canary(3))))).toEqual([true, false]);
});

test("canaries: the trainer's own decides, once; a tie of tokens is no difference", () => {
  const agreement = new Agreement();
  agreement.expect(canary(1));
  // An update that failed on one engine may have left these weights on it; those of the epoch are others.
  expect(agreement.compare(named(canary(0), canary(0)))).toEqual([null, null]);
  agreement.prepare(weightEpoch(1));
  expect(isFenced(agreement.compare(named(canary(0), canary(1))))).toEqual([true, false]);
  expect(isFenced(agreement.compare(named(canary(1), canary(1, [4, 9]))))).toEqual([false, false]);
  expect(agreement.compare(named({ asleep: true }, {}))).toEqual([null, null]);
});
