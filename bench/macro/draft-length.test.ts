// The engine's rule on every recorded table of step times, by work alone.

import { expect, test } from "bun:test";
import { rows } from "./draft-length.ts";

test.each(rows())("rule: as fast as the best fixed length, and as no drafts: $name", (row) => {
  expect(row.rule).toBeLessThanOrEqual(1.03 * Math.min(row.off, ...row.fixed));
  expect(row.rule).toBeLessThanOrEqual(row.off);
});
