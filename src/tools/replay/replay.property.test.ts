// The replay of made-up groups.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { Replica } from "../../core/draft/replica.ts";
import type { TraceGroup } from "./recordings.ts";
import { DRAFTERS, type ReplayOptions, replay } from "./replay.ts";

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

const optionsArbitrary: fc.Arbitrary<ReplayOptions> = fc.record({
  drafter: fc.constantFrom(...DRAFTERS),
  budget: fc.integer({ min: 1, max: 8 }),
  probabilityMin: fc.constantFrom(0.02, 0.3, 0.9),
  live: fc.integer({ min: 1, max: 3 }),
});

async function* streamOf<T>(values: readonly T[]): AsyncGenerator<T> {
  yield* values;
}

// One for all runs: a replay drops its groups.
const drafter = new Replica();

test("replay: every token of every replayed response comes out", async () => {
  await fc.assert(
    fc.asyncProperty(groupsArbitrary, optionsArbitrary, async (groups, options) => {
      const clock = { nowMs: () => 0 };
      const outcome = await replay(streamOf(groups), options, { drafter, clock });
      const tokens = groups.map(({ responses }) =>
        responses.reduce((sum, response) => sum + response.length, 0),
      );
      expect(outcome.groups.map((tally) => tally.tokens)).toEqual(tokens);
    }),
    { numRuns: 100 },
  );
});
