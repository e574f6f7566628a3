// A pause that keeps requests takes hold with the engines' next step, whatever is left of their chunks.

import { expect, test } from "bun:test";
import { expectWhole, world } from "../../../test/suite/rollout-bed.ts";

test("pause: with mode keep chunks end with the next step, and nothing is lost", async () => {
  const { rollout, join, submit, steps } = world({ chunkTokens: 1_000 });
  for (let i = 0; i < 2; i += 1) rollout.addWorker(join());
  const groups = [submit("a", 3), submit("b", 3)];
  await steps(5);
  let hasTakenHold = false;
  void rollout.pause("keep").then((is) => {
    hasTakenHold = is;
  });
  // The first of the two hears of it at its end.
  await steps(2);
  expect([hasTakenHold, rollout.isQuiet]).toEqual([true, true]);
  const made = () =>
    groups.flatMap(({ requests }) => requests.map(({ response }) => response.length));
  const before = made();
  expect(Math.max(...before)).toBeGreaterThan(0);
  await steps(5);
  expect(made()).toEqual(before);
  rollout.resume();
  await steps(60);
  expectWhole(groups);
});
