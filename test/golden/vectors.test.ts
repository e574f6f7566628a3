// The golden vectors are what the code gives now, and say what they are meant to say.

import { expect, test } from "bun:test";
import { staleFiles } from "../../scripts/gen-golden.ts";
import { coreVectors } from "./core/vectors.ts";
import { draftVectors, said, understood } from "./draft/vectors.ts";

test("golden: every file is current (bun scripts/gen-golden.ts)", () => {
  expect(staleFiles()).toEqual([]);
});

test("golden: frames without their defaults are understood as what was said", () => {
  for (const vector of draftVectors()) {
    expect({ [vector.name]: understood(vector) }).toEqual({
      [vector.name]: { kind: "ok", message: said(vector) },
    });
  }
});

test("golden: the core's vectors hold drafts, trees, a budget that binds and a group that is full", () => {
  const steps = Object.entries(coreVectors()).flatMap(([name, { operations }]) =>
    operations.flatMap((operation) => (operation.op === "step" ? [{ name, ...operation }] : [])),
  );
  const of = (wanted: string) => steps.filter(({ name }) => name === wanted);
  expect(of("path").some(({ tokens }) => tokens.length > 20)).toBe(true);
  expect(of("tree").some(({ parents }) => parents.filter((parent) => parent < 0).length > 8)).toBe(
    true,
  );
  expect(of("budget").filter(({ tokens }) => tokens.length === 10).length).toBeGreaterThan(5);
  expect(of("full").some(({ full }) => full.length > 0)).toBe(true);
});
