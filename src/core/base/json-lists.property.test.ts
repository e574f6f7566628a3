import { expect, test } from "bun:test";
import fc from "fast-check";
import { packLists, unpackLists } from "./json-lists.ts";

const MARK = 2 ** 51 + 12_345;

async function through(text: string | Uint8Array, staysPacked = false): Promise<unknown> {
  const bytes = typeof text === "string" ? new TextEncoder().encode(text) : text;
  const pause = () => Promise.resolve();
  return await unpackLists(packLists(bytes, MARK), { staysPacked: () => staysPacked, pause });
}

/** What came of it: the value, or what was thrown. */
async function told(read: () => unknown): Promise<unknown> {
  try {
    return { value: await read() };
  } catch (error) {
    return { error: String(error) };
  }
}

const ids = fc.array(fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), {
  minLength: 50,
  maxLength: 200,
});
const numbers = fc.array(
  fc.oneof(fc.integer(), fc.double({ noNaN: true, noDefaultInfinity: true })),
  { minLength: 50, maxLength: 100 },
);
const blank = fc.constantFrom("", " ", "\n\t", "\r\n  ");

/** JSON with long lists of numbers in it, at any place, written with any blanks. */
const texts = fc
  .tuple(fc.jsonValue(), fc.array(fc.tuple(fc.jsonValue(), fc.oneof(ids, numbers))), blank)
  .map(([first, more, space]) => {
    const value = [
      first,
      ...more.map(([key, list]) => ({ [JSON.stringify(key)]: list, [`__proto__`]: [list] })),
    ];
    return JSON.stringify(value, null, space.length > 2 ? 1 : 0).replaceAll(
      ",",
      `${space},${space}`,
    );
  });

test("unpackLists: what was packed is what the parser makes of the text", async () => {
  await fc.assert(
    fc.asyncProperty(texts, async (text) => {
      // A blank may have come into a string, where it may not stand.
      expect(await told(() => through(text))).toEqual(await told(() => JSON.parse(text)));
    }),
  );
});

test("unpackLists: a text that is cut or damaged anywhere is the parser's error, or its value", async () => {
  const damage = fc.record({
    at: fc.nat(),
    by: fc.constantFrom("", "0", "-", ",", "]", "[", '"', "e", ".", "\\"),
  });
  await fc.assert(
    fc.asyncProperty(texts, damage, async (text, { at, by }) => {
      const place = at % (text.length + 1);
      const damaged =
        by === "" ? text.slice(0, place) : text.slice(0, place) + by + text.slice(place + 1);
      expect(await told(() => through(damaged))).toEqual(await told(() => JSON.parse(damaged)));
    }),
    { numRuns: 500 },
  );
});

test("packLists: numbers that only look like token ids stay what they are", async () => {
  const many = (item: string) => `[${Array.from({ length: 100 }, () => item).join(",")}]`;
  for (const item of [
    "-0",
    "1.0",
    "1e2",
    "1e999",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
  ]) {
    const got = await through(many(item));
    expect(got).toEqual(JSON.parse(many(item)));
    expect(Object.is((got as number[])[0], JSON.parse(item))).toBe(true);
  }
  for (const item of ["01", "-", "+1", "1 1", "", "0x1", "1.", ".5", "1e", "- 1"]) {
    expect(await told(() => through(many(item)))).toEqual(await told(() => JSON.parse(many(item))));
  }
});

test("unpackLists: a list stays packed where it may, and is not a copy of the text's others", async () => {
  const prompt = Array.from({ length: 1_000 }, (_, i) => i);
  const got = (await through(JSON.stringify({ prompt, more: [[prompt], 1.5] }), true)) as Record<
    string,
    unknown
  >;
  expect(got).toEqual({ prompt: Int32Array.from(prompt), more: [[Int32Array.from(prompt)], 1.5] });
  // The bytes are any: those that are no UTF-8 too.
  expect(through(Uint8Array.of(0x22, 0xff, 0x22))).rejects.toThrow(TypeError);
});
