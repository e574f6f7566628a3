// The heap against its twin, over random programs.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { HeapTwin } from "../../../test/reference/heap-twin.ts";
import { InspectedHeap } from "../../../test/suite/inspected-heap.ts";
import { loadCore } from "./load.ts";

const core = loadCore();

interface Op {
  readonly kind: "push" | "pop" | "update" | "remove";
  readonly id: number;
  readonly key: number;
}

const ids = fc.oneof(fc.nat(40), fc.nat(5000));
const keys = fc.oneof(fc.integer({ min: -3, max: 3 }), fc.double({ noNaN: true }));
const ops: fc.Arbitrary<Op> = fc.record({
  kind: fc.constantFrom("push", "push", "pop", "update", "remove"),
  id: ids,
  key: keys,
});

function apply(op: Op, heap: InspectedHeap, twin: HeapTwin): void {
  const present = twin.keys.has(op.id);
  expect(heap.has(op.id)).toBe(present);
  expect(heap.key(op.id)).toEqual(twin.keys.get(op.id) ?? null);
  if (op.kind === "pop") {
    expect(heap.pop()).toBe(twin.pop());
  } else if (op.kind === "remove") {
    expect(heap.remove(op.id)).toBe(twin.keys.delete(op.id));
  } else if (op.kind === "update" || present) {
    expect(heap.update(op.id, op.key)).toBe(present);
    if (present) twin.keys.set(op.id, op.key);
  } else {
    heap.push(op.id, op.key);
    twin.keys.set(op.id, op.key);
  }
}

test("heap: every operation gives what a sorted list gives", () => {
  fc.assert(
    fc.property(fc.array(ops, { maxLength: 300, size: "max" }), (program) => {
      const heap = new InspectedHeap(core);
      const twin = new HeapTwin();
      for (const op of program) {
        apply(op, heap, twin);
        expect(heap.check()).toBe(0);
        expect(heap.size).toBe(twin.keys.size);
        expect(heap.peek()).toBe(twin.peek());
      }
      const rest = twin.sorted();
      expect(rest.map(() => heap.pop())).toEqual(rest);
      expect(heap.pop()).toBeNull();
      heap.free();
    }),
    { numRuns: 60 },
  );
});
