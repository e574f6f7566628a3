// A token log against the obvious twin: the tokens of the response that it follows, and a mark for each position that was told.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { TokenColumn } from "../../request/columns.ts";
import { TokenLog } from "./token-log.ts";

const TRUTH = Int32Array.from({ length: 2000 }, (_, i) => i * 31);
/** Tokens of an attempt that was given up: another one at every position. */
const OTHER = TRUTH.map((token) => token + 1);

const step = fc.oneof(
  fc.record({ kind: fc.constant("grow" as const), count: fc.integer({ min: 1, max: 150 }) }),
  fc.record({
    kind: fc.constant("tell" as const),
    /** Distance from the log's end. */
    shift: fc.integer({ min: -200, max: 200 }),
    count: fc.integer({ min: 0, max: 100 }),
  }),
  fc.record({ kind: fc.constant("look" as const) }),
);
const steps = fc.array(step, { maxLength: 80, size: "max" });
const window = fc.integer({ min: 0, max: 300 });

function world() {
  const column = new TokenColumn(TRUTH.length);
  const log = new TokenLog(column);
  const grow = (count: number) =>
    column.append(TRUTH.subarray(0, column.length + count), column.length);
  return { column, log, grow };
}

test("the log is the response and the tokens sent beyond it without a gap", () => {
  fc.assert(
    fc.property(steps, window, (list, windowTokens) => {
      const { column, log, grow } = world();
      const told = new Set<number>();
      const views: { from: number; view: Int32Array }[] = [];
      for (const one of list) {
        if (one.kind === "grow") {
          grow(one.count);
          continue;
        }
        log.catchUp();
        expect(log.own).toBe(column.length);
        if (one.kind === "tell") {
          const offset = Math.max(0, log.length + one.shift);
          const tokens = TRUTH.subarray(offset, offset + one.count);
          const length = log.length;
          const bytes = log.bytes;
          const growth = log.growthBytes(offset, tokens.length);
          const result = log.append(offset, tokens, windowTokens);
          expect(log.bytes - bytes).toBeLessThanOrEqual(growth);
          if (result !== "gap") for (const i of tokens.keys()) told.add(offset + i);
          if (result === "held")
            expect(offset + tokens.length).toBeLessThanOrEqual(length + windowTokens);
        }
        let run = column.length;
        while (told.has(run)) run += 1;
        expect(log.length).toBe(run);
        const from = Math.max(0, run - 90);
        for (const at of [0, from, column.length, Math.max(0, column.length - 5)]) {
          const view = log.view(at);
          expect(view).toEqual(TRUTH.subarray(at, run));
          views.push({ from: at, view });
        }
      }
      for (const { from, view } of views) {
        expect(view).toEqual(TRUTH.subarray(from, from + view.length));
      }
    }),
    { numRuns: 300 },
  );
});

test("what the response contradicts is dropped, and never covers what the response has", () => {
  fc.assert(
    fc.property(steps, window, fc.nat(), (list, windowTokens, seed) => {
      const { column, log, grow } = world();
      for (const [i, one] of list.entries()) {
        if (one.kind === "grow") grow(one.count);
        log.catchUp();
        if (one.kind === "tell") {
          const offset = Math.max(0, log.length + one.shift);
          const text = (seed >>> (i % 31)) & 1 ? TRUTH : OTHER;
          log.append(offset, text.subarray(offset, offset + one.count), windowTokens);
        }
        expect(log.length).toBeGreaterThanOrEqual(column.length);
        expect(log.view(0, column.length)).toEqual(column.view(0));
      }
      grow(TRUTH.length - column.length);
      log.catchUp();
      expect(log.view(0)).toEqual(TRUTH);
      expect(log.bytes - column.bytes).toBe(0);
    }),
    { numRuns: 300 },
  );
});

test("an engine that is always ahead leaves no second copy of the response", () => {
  const { column, log, grow } = world();
  const lead = 20;
  for (let at = 0; at + 10 + lead <= TRUTH.length; at += 10) {
    log.catchUp();
    log.append(log.length, TRUTH.subarray(log.length, at + 10 + lead), 100);
    grow(10);
    log.catchUp();
    expect(log.length).toBe(at + 10 + lead);
    expect(log.bytes - column.bytes).toBeLessThanOrEqual(4 * 256);
  }
});

const part = (offset: number, count: number) => TRUTH.subarray(offset, offset + count);

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
      expect(log.view(0)).toEqual(TRUTH.subarray(0, 400));
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
