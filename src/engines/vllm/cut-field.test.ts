import { expect, test } from "bun:test";
import { cutField } from "./whole-answer.ts";

function cut(value: unknown, name = "big"): [unknown, unknown] | null {
  const found = cutField(Buffer.from(JSON.stringify(value)), name);
  if (found === null) return null;
  return [JSON.parse(found.value.toString()), JSON.parse(found.rest.toString())];
}

test("cut: texts, lists and objects come out whole, and null takes their place", () => {
  for (const value of [
    "abc",
    "",
    'a"b\\',
    "\\",
    [[1], { a: '"]' }],
    { x: ["}", { y: '\\"{' }] },
    [],
  ]) {
    expect(cut({ a: 1, big: value, z: [2] })).toEqual([value, { a: 1, big: null, z: [2] }]);
    expect(cut({ list: [{ big: value }] })).toEqual([value, { list: [{ big: null }] }]);
  }
});

test("cut: numbers, null, absent fields and texts that look like the field are left alone", () => {
  for (const value of [
    { big: null },
    { big: 5 },
    { a: 1 },
    { a: '"big":"x"' },
    { a: ["big", "x"] },
  ]) {
    expect(cut(value)).toBeNull();
  }
  expect(cut({ a: '"big":[', big: [1] })).toEqual([[1], { a: '"big":[', big: null }]);
  expect(cutField(Buffer.from('{"big" : [1, 2] }'), "big")?.value.toString()).toBe("[1, 2]");
});

test("cut: a value that does not end is none", () => {
  const json = Buffer.from(JSON.stringify({ big: [{ a: '\\"]' }, "x"] }));
  for (let end = json.length - 2; end > 8; end -= 1) {
    expect(cutField(json.subarray(0, end), "big")).toBeNull();
  }
});
