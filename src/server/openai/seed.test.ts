import { expect, test } from "bun:test";
import * as fc from "fast-check";
import * as v from "valibot";
import { parseJson } from "../../proto/json.ts";
import { SEED_FIELD } from "./sampling-fields.ts";

const read = (json: string) => v.parse(v.object({ seed: SEED_FIELD }), parseJson(json)).seed;

test("seed: two of 64 bits that one double stands for stay two", () => {
  const near = ["1704854389287700200", "1704854389287700201", "-1704854389287700200"];
  const seeds = near.map((digits) => read(`{"seed": ${digits}}`));
  expect(new Set(seeds).size).toBe(3);
  expect(seeds.every((seed) => Number.isSafeInteger(seed))).toBe(true);
  expect(read(`{"a":1,"seed":${near[0]}}`)).toBe(seeds[0]);
});

test("seed: of any size, as a number or as text, it is the same each time, and small ones stay", () => {
  const any = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });
  fc.assert(
    fc.property(any, (seed) => {
      const drawn = read(`{"seed":${seed}}`);
      expect(drawn).toBe(read(`{ "seed" : "${seed}" }`));
      expect(Number.isSafeInteger(drawn)).toBe(true);
      if (BigInt.asIntN(53, seed) === seed) expect(drawn).toBe(Number(seed));
    }),
  );
});

test("seed: a text of a prompt that looks like one is left alone", () => {
  const prompt = 'say {"seed": 12345678901234567890} and \\"seed": 12345678901234567890,';
  const body = { prompt, seed: 5, list: ["seed", ":12345678901234567890}"] };
  expect(parseJson(JSON.stringify(body))).toEqual(body);
});

test.each(["9223372036854775808", "-9223372036854775809", "1.5", '"x"', '"1e5"', "true", "[]"])(
  "seed: %s is refused",
  (seed) => {
    expect(() => read(`{"seed":${seed}}`)).toThrow(/not a whole number in -9223372036854775808/);
  },
);
