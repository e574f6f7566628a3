// A token log against the obvious twin: an array with a mark for each position that has been taken.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { TokenLog } from "./token-log.ts";

const TRUTH = Int32Array.from({ length: 400 }, (_, i) => i * 31);
const part = (offset: number, count: number) => TRUTH.subarray(offset, offset + count);

const pieces = fc.array(
  fc.record({ offset: fc.nat({ max: 300 }), count: fc.integer({ min: 0, max: 100 }) }),
  { maxLength: 60 },
);

test("append: the log is the longest run from 0 of what was not answered with a gap", () => {
  fc.assert(
    fc.property(pieces, fc.integer({ min: 0, max: 200 }), (list, windowTokens) => {
      const log = new TokenLog();
      const taken = new Set<number>();
      for (const { offset, count } of list) {
        const before = log.length;
        const growth = log.growthBytes(offset, count);
        const bytes = log.bytes;
        const result = log.append(offset, part(offset, count), windowTokens);
        expect(log.bytes - bytes).toBeLessThanOrEqual(growth);
        if (result.kind !== "gap") for (let i = offset; i < offset + count; i += 1) taken.add(i);
        let run = 0;
        while (taken.has(run)) run += 1;
        expect(log.length).toBe(run);
        expect(log.view(0)).toEqual(TRUTH.subarray(0, run));
        if (result.kind === "ok") expect(result.added).toBe(run - before);
        else expect(offset).toBeGreaterThan(before);
        if (result.kind === "held") {
          expect(offset + count).toBeLessThanOrEqual(before + windowTokens);
        }
      }
    }),
    { numRuns: 1000 },
  );
});

test("append: pieces in any order within the window arrive whole", () => {
  const cuts = fc.uniqueArray(fc.integer({ min: 1, max: 399 }), { maxLength: 20 });
  fc.assert(
    fc.property(cuts, fc.infiniteStream(fc.nat()), (at, chance) => {
      const ends = [0, ...at.toSorted((a, b) => a - b), 400];
      const list = ends.slice(1).map((end, i) => ({ from: ends[i] ?? 0, end }));
      const keys = new Map(list.map((piece) => [piece, chance.next().value ?? 0]));
      const log = new TokenLog();
      for (const piece of list.toSorted((a, b) => (keys.get(a) ?? 0) - (keys.get(b) ?? 0))) {
        log.append(piece.from, part(piece.from, piece.end - piece.from), 400);
      }
      expect(log.view(0)).toEqual(TRUTH);
    }),
  );
});

test("append: what is held never takes more than the window", () => {
  const log = new TokenLog();
  for (let i = 0; i < 50; i += 1) log.append(2 + 3 * (i % 9), part(2 + 3 * (i % 9), 2), 30);
  log.append(5, part(5, 20), 30);
  // At most fifteen pieces of two tokens, with what a piece takes itself.
  expect(log.bytes).toBeLessThanOrEqual(30 * 4 + 15 * 128);
});

test("view: what was handed out does not change when the log grows", () => {
  const log = new TokenLog();
  log.append(0, part(0, 60), 0);
  const view = log.view(10);
  for (let at = 60; at < 400; at += 10) log.append(at, part(at, 10), 0);
  expect(view).toEqual(TRUTH.subarray(10, 60));
});
