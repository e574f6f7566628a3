import { expect, test } from "bun:test";
import { type CellOptions, runCell } from "./cell.ts";
import type { TraceGroup } from "./recordings.ts";

/** Responses that take up phrases of a common stock, each group of its own. */
function groupsOf(count: number, responses: number, phrases: number): TraceGroup[] {
  let state = 7;
  const draw = (below: number) => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % below;
  };
  return Array.from({ length: count }, (_, g) => ({
    name: `g${g}`,
    prompt: Int32Array.of(1, 2, 3),
    responses: Array.from({ length: responses }, () =>
      Int32Array.from(
        Array.from({ length: phrases }, () => draw(12)).flatMap((phrase) => {
          const base = 100 * g + 7 * phrase;
          return [base, base + 1, base + 2, base + 3 + draw(2), base + 5];
        }),
      ),
    ),
  }));
}

const OPTIONS: CellOptions = {
  file: "f",
  drafter: "grouped",
  budget: 16,
  live: 4,
  probabilityMin: 0.1,
};

async function cell(options: Partial<CellOptions>, groups = groupsOf(40, 4, 60)) {
  const stream = async function* () {
    yield* groups;
  };
  return runCell(stream(), { ...OPTIONS, ...options });
}

test("cell: the line of the report adds up", async () => {
  const result = await cell({});
  expect(result).toMatchObject({
    file: "f",
    drafter: "grouped",
    budget: 16,
    groups: 40,
    responses: 160,
    tokens: 160 * 300,
    probability_min: 0.1,
    full_groups: 0,
  });
  const drafted = result.drafted_per_step * result.steps;
  expect(1 + (result.accepted_per_drafted * drafted) / result.steps).toBeCloseTo(
    result.accepted_plus_1,
    9,
  );
  const [low, high] = result.ci95 ?? [0, 0];
  expect(low).toBeLessThan(result.accepted_plus_1);
  expect(high).toBeGreaterThan(result.accepted_plus_1);
  expect(result.us_per_token).toBeGreaterThan(0);
});
