import { expect, test } from "bun:test";
import fc from "fast-check";
import { JsonLimitError, membersOf, parseJson } from "./json.ts";

const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);

test("parseJson: takes the bound, and not one level more", () => {
  expect(() => parseJson(nested(128))).not.toThrow();
  expect(() => parseJson(nested(129))).toThrow(JsonLimitError);
  expect(() => parseJson('{"a":'.repeat(200_000))).toThrow("more than 128 levels deep");
});

test("parseJson: brackets in strings, and lists side by side, are no depth", () => {
  const value = { text: '[{"\\'.repeat(1000), lists: Array.from({ length: 1000 }, () => [[1]]) };
  expect(parseJson(JSON.stringify(value))).toEqual(value);
  expect(parseJson(`${JSON.stringify("[".repeat(300))}`)).toBe("[".repeat(300));
});

test("parseJson: what is not JSON is a SyntaxError", () => {
  for (const text of ["", "{", '"', '"\\', "]".repeat(300), `${nested(100)}${nested(100)}`]) {
    expect(() => parseJson(text)).toThrow(SyntaxError);
  }
});

function depthOf(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

test("parseJson: agrees with the depth of the value", () => {
  const texts = fc.stringMatching(/^[[\]{}"\\ a]*$/);
  const value = fc.letrec((tie) => ({
    any: fc.oneof(
      { maxDepth: 6, withCrossShrink: true },
      texts,
      fc.array(tie("any"), { maxLength: 3 }),
      fc.dictionary(texts, tie("any"), { maxKeys: 3 }),
    ),
  })).any;
  fc.assert(
    fc.property(value, (one) => {
      const text = JSON.stringify(one);
      const depth = depthOf(one);
      if (depth > 0) expect(() => parseJson(text, { depthMax: depth - 1 })).toThrow(JsonLimitError);
      expect(parseJson(text, { depthMax: depth })).toEqual(JSON.parse(text));
    }),
  );
});

test("parseJson: counts objects, lists and texts, and no numbers", () => {
  const limits = { entriesMax: 4 };
  for (const text of [
    '["a","b","c"]',
    '{"a":"b","c":1}',
    "[[],[],[1,2,3,4,5,6]]",
    '"\\"\\"\\"\\"\\""',
  ]) {
    expect(parseJson(text, limits)).toEqual(JSON.parse(text));
  }
  for (const text of ['["a","b","c",""]', '{"a":"b","c":"d"}', "[[],[],[[]],1]"]) {
    expect(() => parseJson(text, limits)).toThrow("more than 4 objects, lists and texts");
  }
  expect(() => parseJson(`[${'"",'.repeat(600_000)}1]`)).toThrow(JsonLimitError);
  expect(() => parseJson(`[${"[],".repeat(600_000)}1]`)).toThrow(JsonLimitError);
  expect(parseJson(`[${"1,".repeat(600_000)}1]`)).toHaveLength(600_001);
});

test("membersOf: the text of each member, which reads as the member does", () => {
  const text = ' {"a" : {"x": [1.0, "}"]} , "\\"b\\u0061":"\\\\", "c":[], "a": 2}';
  expect([...membersOf(text)]).toEqual([
    ["a", "2"],
    ['"ba', '"\\\\"'],
    ["c", "[]"],
  ]);
  expect([...membersOf("[]")]).toEqual([]);
  const any = fc.oneof(fc.dictionary(fc.string(), fc.jsonValue()), fc.array(fc.jsonValue()));
  fc.assert(
    fc.property(any, fc.integer({ min: 0, max: 2 }), (value, indent) => {
      const read = [...membersOf(JSON.stringify(value, null, indent))];
      const entries = Object.entries(value).map(([name, one]) => [name, JSON.stringify(one)]);
      expect(read.map(([name, one]) => [name, JSON.stringify(JSON.parse(one))])).toEqual(entries);
    }),
  );
});
