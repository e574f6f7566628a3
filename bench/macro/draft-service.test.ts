// The bench at a small size: every client gets every token, and the figures are there.

import { expect, test } from "bun:test";
import { measure } from "./draft-service.ts";

test("bench: two clients write half each, and each fetches the other half", async () => {
  const row = await measure({ clients: 2, groups: 2, tokens: 64 });
  expect(row.tokens_out_per_s / row.tokens_in_per_s).toBeCloseTo(1, 6);
  expect(row.tokens_in_per_s / row.deltas_in_per_s).toBeCloseTo(16, 6);
  expect(row.ratio).toBeGreaterThan(0);
});
