// JSON text by a JSON Schema: mostly what the schema allows, and now and then what it does not: another type, a bound and
// the value beyond it, an unknown, missing or repeated member, numbers that no float has. Text, because some of it has no
// counterpart among JavaScript's values.

import fc from "fast-check";
import { charactersOf } from "../../suite/characters.ts";

/** The part of JSON Schema that the OpenAPI document uses. */
export interface Schema {
  readonly type?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly anyOf?: readonly Schema[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly minimum?: number;
  readonly maximum?: number;
}

type Json = fc.Arbitrary<string>;

export interface JsonOptions {
  /** Members of objects whose members the schema does not name. */
  readonly members: Readonly<Record<string, Json>>;
  /** Values of members by name, in place of what the schema says; each is drawn in most cases. */
  readonly values: Readonly<Record<string, Json>>;
  /** Values are what the schema allows: one that is wrong keeps all the rest from being looked at. */
  readonly isRight?: boolean;
  /** Members that are there then, whether the schema requires them or not. */
  readonly wanted?: readonly string[];
}

/** Options for values that follow the schema exactly. */
export const PLAIN: JsonOptions = { members: {}, values: {} };

const quoted = (text: string): string => JSON.stringify(text);

const NUMBERS = ["0", "-0", "1", "-1", "2", "3", "7", "20", "255", "999", "1000", "1001", "65536"]
  .concat(["2147483647", "2147483648", "4294967295", "4294967296", "9007199254740991"])
  .concat(["9007199254740993", "18446744073709551615", "-2147483649", "1e18", "1e308", "1e309"])
  .concat(["-1e999", "1e-320", "5e-324", "0.1", "0.999999999", "1.5", "-0.5", "1E+2", "1e0"]);

const number: Json = fc.oneof(
  { arbitrary: fc.constantFrom(...NUMBERS), weight: 1 },
  { arbitrary: fc.integer({ min: 0, max: 300 }).map(String), weight: 2 },
);

const TEXTS = ["", " ", "a", "tiny", "sort 9 27", "user", "assistant", "system", "default", "keep"]
  .concat(["abort", "wait", "checksum", "reset", "<eos>", "0", "1", "-1", "null", "NaN", "[DONE]"])
  .concat(["__proto__", "constructor", "toString", "../../etc/passwd", "/dev/zero", "/tmp", "\0"])
  .concat(["http://127.0.0.1:1", "ws://[::1]:1/", "http://"])
  .concat(["é", "𝄞", "\u202e", "\ufeff", "\u2028"])
  .concat(["x".repeat(1024), "y".repeat(1025), "z".repeat(5000), "{{ 7*7 }}", "%s%n", "\r\n\r\n"]);

const text: Json = fc.oneof(
  { arbitrary: fc.constantFrom(...TEXTS).map(quoted), weight: 3 },
  { arbitrary: charactersOf({ maxLength: 12 }).map(quoted), weight: 1 },
  // Half of a surrogate pair, an escape that needs none.
  { arbitrary: fc.constantFrom('"\\ud800"', '"\\udc00x"', '"\\u0041"', '"\\/"'), weight: 1 },
);

/** Few, so that some come again. */
const name: Json = fc.integer({ min: 0, max: 30 }).map((one) => `"n${one}"`);

const DEPTHS = [3, 60, 127, 128, 129, 200];

/** Anything at all. */
export const anyJson: Json = fc.oneof(
  number,
  text,
  fc.constantFrom("null", "true", "false", "{}", "[]", "[null]", '{"":0}', '[[[]],{"a":[]}]'),
  fc.constantFrom(...DEPTHS).map((depth) => "[".repeat(depth) + "]".repeat(depth)),
  fc.array(number, { maxLength: 6 }).map((list) => `[${list}]`),
  fc.array(text, { maxLength: 4 }).map((list) => `[${list}]`),
  fc
    .array(fc.tuple(text, number), { maxLength: 4 })
    .map((pairs) => `{${pairs.map(([name, value]) => `${name}:${value}`)}}`),
);

export function jsonOf(schema: Schema, options: JsonOptions): Json {
  const right = rightOf(schema, options);
  if (options.isRight === true) return right;
  return fc.oneof({ arbitrary: right, weight: 15 }, { arbitrary: anyJson, weight: 1 });
}

function rightOf(schema: Schema, options: JsonOptions): Json {
  if (schema.anyOf !== undefined) {
    // `null` stands last, and says little.
    const [first = {}, ...others] = schema.anyOf;
    const weighted = others.map((one) => ({ arbitrary: jsonOf(one, options), weight: 1 }));
    return fc.oneof({ arbitrary: jsonOf(first, options), weight: 4 }, ...weighted);
  }
  if (schema.const !== undefined) return fc.constant(JSON.stringify(schema.const));
  if (schema.enum !== undefined) {
    return fc.constantFrom(...schema.enum.map((one) => JSON.stringify(one)));
  }
  switch (schema.type) {
    case "object":
      return objectOf(schema, options);
    case "array":
      return fc
        .array(jsonOf(schema.items ?? {}, options), {
          minLength: options.isRight ? 1 : 0,
          maxLength: 5,
        })
        .map((list) => `[${list}]`);
    case "string":
      return options.isRight ? name : text;
    case "integer":
    case "number":
      return options.isRight ? insideOf(schema) : numberOf(schema);
    case "boolean":
      return fc.constantFrom("true", "false");
    default:
      return options.isRight ? fc.constant("null") : anyJson;
  }
}

function insideOf({ type, minimum = 0, maximum = 300 }: Schema): Json {
  const max = Math.min(maximum, Math.max(minimum, 0) + 40);
  const inside =
    type === "integer"
      ? fc.integer({ min: Math.ceil(minimum), max: Math.floor(max) })
      : fc.double({ min: minimum, max, noNaN: true });
  return inside.map(String);
}

function numberOf(schema: Schema): Json {
  const { minimum = 0, maximum = 300 } = schema;
  const bounds = [minimum, maximum, minimum - 1, maximum + 1].map(String);
  return fc.oneof(
    { arbitrary: insideOf(schema), weight: 4 },
    { arbitrary: fc.constantFrom(...bounds), weight: 1 },
    { arbitrary: number, weight: 1 },
  );
}

/** Most required members, up to five of the others, sometimes one twice or unknown. */
function objectOf({ properties, required = [] }: Schema, options: JsonOptions): Json {
  const named = Object.entries(properties ?? {});
  const isNeeded = (name: string) =>
    required.includes(name) || (options.isRight && options.wanted?.includes(name));
  const memberOf = (name: string, schema: Schema): Json => {
    const own = options.values[name];
    const right = jsonOf(schema, options);
    if (own === undefined || options.isRight === true) return own ?? right;
    return fc.oneof({ arbitrary: own, weight: 6 }, { arbitrary: right, weight: 1 });
  };
  const member = (name: string, value: Json): Json =>
    value.map((written) => `${quoted(name)}:${written}`);
  const needed = named
    .filter(([name]) => isNeeded(name))
    .map(([name, schema]) => member(name, memberOf(name, schema)))
    .map((one) => (options.isRight ? one : fc.option(one, { freq: 30 })));
  const isFree = properties === undefined && options.isRight !== true;
  const members = isFree ? Object.entries(options.members) : [];
  const others = [
    ...named
      .filter(([name]) => !isNeeded(name))
      .map(([name, schema]) => member(name, memberOf(name, schema))),
    ...members.map(([name, value]) => member(name, value)),
  ];
  const unknown = fc.tuple(text, anyJson).map(([name, value]) => `${name}:${value}`);
  const known = others.length === 0 ? unknown : fc.oneof(...others);
  const one = fc.oneof({ arbitrary: known, weight: 30 }, { arbitrary: unknown, weight: 1 });
  const optional = options.isRight
    ? fc
        .subarray(others, { maxLength: Math.min(5, others.length) })
        .chain((some) => fc.tuple(...some))
    : fc.array(one, { maxLength: 5 });
  return fc.tuple(fc.tuple(...needed), optional).map(([first, rest]) => {
    const all = [...first.filter((one) => one !== null), ...rest];
    return `{${all.join(",")}}`;
  });
}
