import { expect, test } from "bun:test";
import { runNamed } from "../core/schedule/policies.ts";
import { FIELDS, type Field, parseField } from "./fields.ts";

test("parseField: names the flag, the value and the bound of a number out of range", () => {
  expect(() => parseField(FIELDS.servers, "0")).toThrow(
    "--workers is 0; it must be between 1 and 64",
  );
  expect(() => parseField(FIELDS.servers, "65")).toThrow("between 1 and 64");
});

test("parseField: refuses what is not a whole number", () => {
  for (const text of ["", " ", "1.5", "x", "1e400", "NaN", "12abc"]) {
    expect(() => parseField(FIELDS.servers, text)).toThrow("a whole number");
  }
});

test("parseField: names the choices", () => {
  expect(() => parseField(FIELDS.policy, "best")).toThrow("seer, seer:grouped, seer:off");
});

test("fields: every default lies in its own range", () => {
  for (const field of Object.values<Field>(FIELDS)) {
    if (field.kind === "switch" || field.kind === "list" || field.default === null) continue;
    expect<unknown>(parseField(field, String(field.default))).toBe(field.default);
  }
});

test("policy: drafting is on with seer and off with the baselines, unless a run names it", () => {
  expect((["group", "seer"] as const).map(runNamed)).toEqual([
    { policy: "group", draft: "off" },
    { policy: "seer", draft: "grouped" },
  ]);
  expect((["group:grouped", "seer:off"] as const).map(runNamed)).toEqual([
    { policy: "group", draft: "grouped" },
    { policy: "seer", draft: "off" },
  ]);
});
