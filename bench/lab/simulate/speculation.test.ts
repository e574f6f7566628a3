import { expect, test } from "bun:test";
import { acceptanceLength, groupedAcceptanceLength, qualityFor } from "./speculation.ts";

test("speculation: more siblings accept more, as published", () => {
  for (const [references, length] of [
    [0, 1.7],
    [1, 2.04],
    [5, 2.32],
    [15, 2.53],
  ] as const) {
    expect(groupedAcceptanceLength(1.7, references)).toBeCloseTo(length, 6);
  }
});

test("speculation: the quality found for a length accepts that length", () => {
  for (const length of [1.2, 1.7, 2.04, 2.53, 2.8]) {
    expect(Math.abs(acceptanceLength(qualityFor(length)) - length)).toBeLessThan(0.08);
  }
});
