// The heap's edges: sizes, limits and misuse.

import { expect, test } from "bun:test";
import { InspectedHeap } from "../../../test/suite/inspected-heap.ts";
import { AssertionError } from "../base/assert.ts";
import { loadCore } from "./load.ts";

test("heap: an id is pushed once, in range, with a key", () => {
  const heap = new InspectedHeap(loadCore());
  heap.push(3, 1);
  expect(() => heap.push(3, 2)).toThrow(AssertionError);
  expect(() => heap.push(-1, 2)).toThrow(AssertionError);
  expect(() => heap.push(1 << 24, 2)).toThrow(AssertionError);
  expect(() => heap.push(1.5, 2)).toThrow(AssertionError);
  expect(() => heap.push(4, Number.NaN)).toThrow(AssertionError);
  expect(heap.size).toBe(1);
});

test("heap: a full instance refuses an entry and keeps what it has", () => {
  const heap = new InspectedHeap(loadCore({ limitBytes: 64 * 1024 }));
  let pushed = 0;
  const fill = () => {
    for (; pushed < 100_000; pushed += 1) heap.push(pushed, -pushed);
  };
  expect(fill).toThrow("core's byte limit");
  expect(pushed).toBeGreaterThan(500);
  expect(heap.check()).toBe(0);
  expect(heap.size).toBe(pushed);
  expect(heap.pop()).toBe(pushed - 1);
});
