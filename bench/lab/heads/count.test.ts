import { expect, test } from "bun:test";
import { acceptanceOf, count, groupsOf } from "./count.ts";

const TEXT = Array.from({ length: 81 }, (_, i) => 10 + i);

/** A group of 16 responses of the same text; of each draft the first tokens are right, as many as `rightOf` says. */
function groups(rightOf: (at: number) => number) {
  const drafts = TEXT.slice(1).map((_, at) =>
    TEXT.slice(at + 1, at + 8).map((token, place) => (place < rightOf(at + 1) ? token : 5)),
  );
  const line = { group: "a", prompt_token_ids: [1, 2], token_ids: TEXT, drafts };
  return groupsOf(Array.from({ length: 16 }, () => `${JSON.stringify(line)}\n`).join(""));
}

const ALL = { tokensMax: 7, siblings: 16, together: 16 } as const;

test("count: a head that is right brings all that it drafts, early and late", () => {
  const [wave] = count(
    groups(() => 7),
    { ...ALL, system: "head" },
  );
  // 80 tokens, 8 a step: those behind tokens 1, 9, ..., 57, and 65 and 73.
  const early = { steps: 16 * 8, drafted: 16 * 8 * 7, accepted: 16 * 8 * 7 };
  expect(wave?.early).toEqual(early);
  expect(wave?.late).toEqual({ steps: 16 * 2, drafted: 16 * 14, accepted: 16 * 14 });
});

test("count: siblings that have ended bring what the head does not know", () => {
  const known = groups((at) => at % 2);
  expect(
    acceptanceOf(known)
      .slice(0, 2)
      .map((share) => share.toFixed(2)),
  ).toEqual(["0.50", "0.00"]);
  const four = { ...ALL, together: 4 };
  const steps = (["head", "table", "both"] as const).map((system) =>
    count(known, { ...four, system }).map(({ early, late }) => early.steps + late.steps),
  );
  const [head = [], table = [], both = []] = steps;
  // Twins in lock step say nothing to one another.
  expect(table[0]).toBeGreaterThan(both[0] ?? 0);
  expect(new Set(head).size).toBe(1);
  for (const wave of [1, 2, 3]) {
    expect(table[wave]).toBeLessThan((head[wave] ?? 0) / 2);
    expect(both[wave]).toBeLessThan((head[wave] ?? 0) / 2);
  }
});
