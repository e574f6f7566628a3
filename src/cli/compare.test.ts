import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { POLICY_NAMES } from "../core/schedule/policies.ts";
import { parseCompare } from "./rounds.ts";

test("policies: the Python package names the same", () => {
  const path = join(import.meta.dir, "../../python/src/foretoken/sidecar.py");
  const [, names] = /^Policy = Literal\[(.*)\]$/m.exec(readFileSync(path, "utf8")) ?? [];
  expect(JSON.parse(`[${names}]`).toSorted()).toEqual(POLICY_NAMES.toSorted());
});

test("compare: drafting is on with seer and off with the baselines", () => {
  expect(parseCompare("group,seer", null)).toEqual([
    { name: "group", policy: "group", draft: "off" },
    { name: "seer", policy: "seer", draft: "grouped" },
  ]);
});

test("compare: a run may name its drafting, which wins over --draft", () => {
  expect(parseCompare("seer:off,seer", "grouped").map((run) => run.draft)).toEqual([
    "off",
    "grouped",
  ]);
});

test("compare: names the part that is wrong", () => {
  expect(() => parseCompare("group,best", null)).toThrow('--compare names "best"');
  expect(() => parseCompare("seer:much", null)).toThrow("grouped, off");
  expect(() => parseCompare("seer,seer", null)).toThrow("twice");
  expect(() => parseCompare("", null)).toThrow('names ""');
});
