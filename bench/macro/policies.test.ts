// The default policy on a part of the matrix, by counted work.

import { expect, test } from "bun:test";
import { BASELINES, cellsOf, RATIO_MIN, rowOf } from "./policies.ts";

const cells = cellsOf({
  times: "priced",
  engines: "2,1",
  groups: "8",
  kv: "short,ample",
  pool: "yes",
});

test.each(cells)(
  "default policy: no more work than group and divided: $name",
  async (cell) => {
    const { over } = await rowOf(cell, 20);
    for (const other of BASELINES) expect(over[other]?.mean).toBeGreaterThanOrEqual(RATIO_MIN);
  },
  120_000,
);
