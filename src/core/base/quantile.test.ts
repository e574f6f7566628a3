import { expect, test } from "bun:test";
import fc from "fast-check";
import { quantileOf } from "./quantile.ts";

test("quantileOf: the value at that place of the sorted ones, which stay in order", () => {
  const values = fc.array(fc.integer({ min: -4, max: 4 }), { maxLength: 40 });
  fc.assert(
    fc.property(values, fc.constantFrom(0, 1 / 4, 1 / 2, 3 / 4, 0.99, 1), (given, part) => {
      const before = [...given];
      const sorted = given.toSorted((a, b) => a - b);
      const at = Math.min(given.length - 1, Math.floor(part * given.length));
      expect(quantileOf(given, part)).toBe(sorted[at]);
      expect(given).toEqual(before);
    }),
  );
});
