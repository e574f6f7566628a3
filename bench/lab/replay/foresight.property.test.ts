// Replays of made-up groups by every drafter of the lab.

import { expect, test } from "bun:test";
import fc from "fast-check";
import type { TraceGroup } from "../../../src/tools/replay/recordings.ts";
import { labCell } from "./cell.ts";
import { LAB_DRAFTERS } from "./foresight.ts";

// Few tokens, so that contexts repeat.
const text = (maxLength: number) =>
  fc.array(fc.integer({ min: 0, max: 2 }), { maxLength }).map((ids) => Int32Array.from(ids));

const groupsArbitrary: fc.Arbitrary<TraceGroup[]> = fc.array(
  fc.record({
    name: fc.constant("g"),
    prompt: text(4),
    responses: fc.array(text(14), { maxLength: 4 }),
  }),
  { maxLength: 4 },
);

async function* streamOf<T>(values: readonly T[]): AsyncGenerator<T> {
  yield* values;
}

test("foresight: every token comes out, drafted tokens are judged once, and nobody beats who knows the future", async () => {
  const options = { file: "f", budget: 8, live: 2, probabilityMin: 0.1 };
  await fc.assert(
    fc.asyncProperty(groupsArbitrary, async (groups) => {
      const tokens = groups.flatMap(({ responses }) => responses.map(({ length }) => length));
      for (const drafter of LAB_DRAFTERS) {
        const cell = await labCell(streamOf(groups), { ...options, drafter });
        expect(cell.tokens).toBe(tokens.reduce((sum, length) => sum + length, 0));
        const judged = cell.reliability.reduce((sum, { count }) => sum + count, 0);
        expect(judged).toBeCloseTo(cell.drafted_per_step * cell.steps, 6);
        // What was copied had been followed, token by token.
        expect(cell.copies_plus_1).toBeLessThanOrEqual(cell.oracle_plus_1);
        if (drafter !== "copies" && drafter !== "oracle") continue;
        expect(cell.accepted_plus_1).toBe(cell[`${drafter}_plus_1`]);
        if (cell.drafted_per_step > 0)
          expect([cell.accepted_per_drafted, cell.ece]).toEqual([1, 0]);
      }
    }),
    { numRuns: 6 },
  );
}, 60_000);
