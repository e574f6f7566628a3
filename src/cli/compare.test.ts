import { expect, test } from "bun:test";
import { parseCompare } from "./rounds.ts";

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
