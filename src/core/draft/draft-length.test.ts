import { expect, test } from "bun:test";
import { AdaptiveLength, ConstantLength, type Offer } from "./draft-length.ts";

/** Two rows are free, the others cost 3 ms each. */
const times = { ms: (_batch: number, rows: number) => (rows <= 3 ? 15 : 15 + 3 * (rows - 3)) };
const everyRowCosts = { ms: (_batch: number, rows: number) => rows };

function offer(batch: number, ...gains: number[]): Offer {
  return { batch, whole: batch, gains: Float64Array.from(gains), draftMs: 0 };
}

test("choose: what makes the engine fastest, also where the first rows are free and later ones are not", () => {
  // A third makes 4.02 tokens in 21 ms, faster than 2.7 in 15; a fifth is slower.
  const planner = new AdaptiveLength();
  expect(planner.choose(offer(1, 0.9, 0.8, 0.7, 0.62, 0.3, 0.2), times)).toBe(4);
  expect(planner.choose(offer(1, 0.9, 0.8, 0.1), times)).toBe(2);
});

test("choose: a row of every request for each token, so that a draft of one among many must be likely", () => {
  const planner = new AdaptiveLength();
  const flat = { ms: (_batch: number, rows: number) => 20 + rows };
  expect(planner.choose(offer(1, 0.9, 0.8), flat)).toBe(2);
  expect(planner.choose(offer(16, 0.9, 0.8), flat)).toBe(0);
});

test("choose: what making drafts takes is part of the price", () => {
  expect(new AdaptiveLength().choose({ ...offer(1, 0.9, 0.8), draftMs: 30 }, times)).toBe(0);
});

test("choose: nothing where all together gain too little, and then drafting rests for longer and longer", () => {
  const planner = new AdaptiveLength();
  const made: number[] = [];
  for (let step = 0; step < 200; step += 1) {
    if (!planner.wantsDrafts()) continue;
    made.push(step);
    expect(planner.choose(offer(8, 7.9, 7.8), everyRowCosts)).toBe(0);
  }
  expect(made.slice(0, 7)).toEqual([0, 1, 2, 3, 5, 8, 13]);
  expect(made.at(-1)).toBeGreaterThan(150);
  expect(made.length).toBeLessThan(15);
});

test("choose: drafts that pay end the rest", () => {
  const planner = new AdaptiveLength();
  for (let i = 0; i < 9; i += 1) planner.choose(offer(1), times);
  expect(planner.wantsDrafts()).toBe(false);
  planner.choose(offer(1, 0.9), times);
  while (!planner.wantsDrafts());
  expect(planner.wantsDrafts()).toBe(true);
});

test("ConstantLength: as long as the longest draft, eight at most", () => {
  expect(new ConstantLength().choose(offer(2, 0.3, 0.2, 0, 0))).toBe(2);
  expect(new ConstantLength().choose({ ...offer(1), gains: new Float64Array(16).fill(0.1) })).toBe(
    8,
  );
});
