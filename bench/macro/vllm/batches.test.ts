import { expect, test } from "bun:test";
import { readShape, rowOf, type Turn } from "./batches.ts";
import { step } from "./testing.ts";

const VALUES = { batches: "1,32", loads: "grouped,random", rounds: "3", tokens: "96" };

test("--batches: reads sizes and loads, and names what it cannot take", () => {
  expect(readShape(VALUES)).toEqual({
    batches: [1, 32],
    loads: ["random", "grouped"],
    rounds: 3,
    tokens: 96,
  });
  const bad = [
    [{ batches: "0" }, "--batches is 0; it is a whole number from 1 to 1024"],
    [{ loads: "many" }, "--loads names many; there are random, grouped, alone, no_group"],
    [{ tokens: "x" }, "--tokens is x; it is a whole number from 1 to 1024"],
  ] as const;
  for (const [change, message] of bad) {
    expect(() => readShape({ ...VALUES, ...change })).toThrow(message);
  }
});

test("--batches: a server that takes half the time is twice as fast, round by round", () => {
  const turn = (wallS: number, cpuS: number): Turn => ({
    ...{ wallS, cpuS },
    steps: [
      step({ rows: 9, prefillRows: 8 }),
      step({ requests: 2, rows: 2, tokensMade: 2 }),
      step({ requests: 2, rows: 6, draftRows: 4, tokensMade: 5 }),
    ],
  });
  const rounds = [
    [[turn(4, 2)], [turn(2, 2)]],
    [[turn(8, 4)], [turn(4, 4)]],
  ];
  const row = rowOf(rounds, 1);
  expect(row.wall.mean).toBeCloseTo(2);
  expect(row.cpu.mean).toBeCloseTo(1);
  expect(row).toMatchObject({ tokens_per_step: 7 / 4, rows_per_step: 4, drafted_steps: 0.5 });
  expect(row).toMatchObject({ drafted: 8, accepted: 6 });
});
