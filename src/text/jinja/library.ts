// The names that templates find defined: Jinja's filters, tests and functions, and those of transformers. Missing
// names are reported when a template is read.

import * as op from "./operations.ts";
import {
  type Callable,
  compare,
  contains,
  countOf,
  Fields,
  isDict,
  isEqual,
  isList,
  isNumber,
  isTrue,
  itemsOf,
  jsonOf,
  lengthOf,
  type Named,
  numberOf,
  shown,
  TemplateError,
  Tuple,
  textOf,
  type Value,
} from "./values.ts";

/** Reads the value under a dotted path such as "a.b.0"; without a path, the value itself. */
function reading(path: Value = null): (value: Value) => Value {
  const parts = path === null ? [] : shown(path).split(".");
  const keys = parts.map((part) => (/^\d+$/.test(part) ? BigInt(part) : part));
  return (value) => keys.reduce((one: Value, key) => op.itemOf(one, key), value);
}

/** Key for comparisons, which ignore the case of texts unless `minds`. */
function folding(path: Value, minds: Value): (value: Value) => Value {
  const read = reading(path);
  return (value) => {
    const one = read(value);
    return typeof one === "string" && !isTrue(minds) ? one.toLowerCase() : one;
  };
}

function sorted(items: Value, key: (value: Value) => Value, isReverse: Value): Value[] {
  const sign = isTrue(isReverse) ? -1 : 1;
  return itemsOf(items).toSorted((a, b) => sign * compare(key(a), key(b)));
}

function rounded(value: Value, precision: Value = 0n, method: Value = "common"): Value {
  const scale = 10 ** countOf(precision);
  const number = countOf(value) * scale;
  if (method === "ceil") return Math.ceil(number) / scale;
  if (method === "floor") return Math.floor(number) / scale;
  if (typeof value === "bigint") return value;
  if (countOf(precision) > 0) return Number(countOf(value).toFixed(countOf(precision)));
  // Halves go to the even neighbour.
  const isHalf = Math.abs(number % 1) === 0.5;
  return (isHalf ? 2 * Math.round(number / 2) : Math.round(number)) / scale;
}

function indented(text: Value, width: Value = 4n, isFirst: Value = false, isBlank: Value = false) {
  const margin = isNumber(width) ? " ".repeat(countOf(width)) : textOf(width);
  const isIn = (line: string, i: number) =>
    i === 0 ? isTrue(isFirst) : line !== "" || isTrue(isBlank);
  const lines = textOf(text).split("\n");
  return lines.map((line, i) => (isIn(line, i) ? margin + line : line)).join("\n");
}

function toNumber(value: Value, otherwise: Value): Value {
  if (isNumber(value)) return numberOf(value);
  const text = typeof value === "string" ? op.stripped(value, null).replaceAll("_", "") : "";
  if (/^[-+]?\d+$/.test(text)) return BigInt(text.replace("+", ""));
  return text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text);
}

function toInt(value: Value, otherwise: Value = 0n, base: Value = 10n): Value {
  const isBased = typeof value === "string" && countOf(base) !== 10;
  const number = toNumber(isBased ? Number.parseInt(value, countOf(base)) : value, otherwise);
  if (typeof number !== "number") return number;
  return Number.isFinite(number) ? BigInt(Math.trunc(number)) : otherwise;
}

function toJson(
  value: Value,
  ascii: Value,
  indent: Value = null,
  separators: Value = null,
  sorts: Value = false,
): string {
  const [comma, colon] = separators === null ? [] : itemsOf(separators);
  const margin = isNumber(indent) ? " ".repeat(countOf(indent)) : indent;
  return jsonOf(value, {
    indent: margin === null ? null : textOf(margin),
    separators: [shown(comma ?? (indent === null ? ", " : ",")), shown(colon ?? ": ")],
    isAscii: isTrue(ascii),
    isSorted: isTrue(sorts),
  });
}

const HTML: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  "'": "&#39;",
  '"': "&#34;",
};
const escaped = (value: Value) => shown(value).replace(/[&<>'"]/g, (one) => HTML[one] ?? one);

const SIMPLE_FILTERS = op.functions({
  abs: (value) => (compare(value, 0n) < 0 ? -numberOf(value) : numberOf(value)),
  capitalize: (value) => op.capitalized(shown(value)),
  "default|d default_value boolean": (value, otherwise = "", minds = false) =>
    value === undefined || (isTrue(minds) && !isTrue(value)) ? otherwise : value,
  "dictsort case_sensitive by reverse": (dict, minds, by = "key", isReverse = false) =>
    sorted(op.pairsOf(dict), folding(by === "value" ? "1" : "0", minds), isReverse),
  "e|escape": escaped,
  first: (items) => itemsOf(items)[0],
  "float default": (value, otherwise = 0) => {
    const number = toNumber(value, otherwise);
    return typeof number === "bigint" ? Number(number) : number;
  },
  format: (text, ...given) => op.formatted(textOf(text), Tuple.from(given)),
  "indent width first blank": indented,
  "int default base": toInt,
  items: (dict) => {
    if (dict === undefined || isDict(dict)) return op.pairsOf(dict);
    throw new TemplateError("Can only get item pairs from a mapping.");
  },
  "join d attribute": (items, separator = "", path = null) =>
    itemsOf(items).map(reading(path)).map(shown).join(shown(separator)),
  last: (items) => itemsOf(items).at(-1),
  "length|count": lengthOf,
  list: (items) => [...itemsOf(items)],
  lower: (value) => shown(value).toLowerCase(),
  "max case_sensitive attribute": (items, minds, path) =>
    sorted(items, folding(path, minds), true)[0],
  "min case_sensitive attribute": (items, minds, path) =>
    sorted(items, folding(path, minds), false)[0],
  "replace old new count": (text, from, to, max) =>
    op.replaced(shown(text), shown(from), shown(to), max),
  reverse: (value) => {
    const turned = itemsOf(value).toReversed();
    return typeof value === "string" ? turned.join("") : turned;
  },
  "round precision method": rounded,
  "sort reverse case_sensitive attribute": (items, isReverse, minds, path) =>
    sorted(items, folding(path, minds), isReverse),
  "string|safe": shown,
  "sum attribute start": (items, path = null, start = 0n) => {
    const all = itemsOf(items).map(reading(path)).map(numberOf);
    const whole = [numberOf(start), ...all];
    if (whole.every((one) => typeof one === "bigint")) return whole.reduce((a, b) => a + b, 0n);
    return whole.reduce((sum: number, one) => sum + Number(one), 0);
  },
  title: (value) =>
    shown(value)
      .split(/([-\s({[<]+)/)
      .map(op.capitalized)
      .join(""),
  "tojson ensure_ascii indent separators sort_keys": toJson,
  "trim chars": (value, characters) => op.stripped(shown(value), characters),
  upper: (value) => shown(value).toUpperCase(),
});

const NO_NAMES: Named = new Map();

/** select and reject: items that pass a test, or do not. `isOf`: the test is of an attribute of theirs. */
function choosing(isWanted: boolean, isOf: boolean): Callable {
  return ([items, ...given]) => {
    const read = reading(isOf ? given.shift() : null);
    const [name = "true value", ...rest] = given;
    const test = TESTS.get(shown(name)) ?? (([value]: readonly Value[]) => isTrue(value));
    return itemsOf(items).filter(
      (one) => isTrue(test([read(one), ...rest], NO_NAMES)) === isWanted,
    );
  };
}

const map: Callable = ([items, name, ...rest], named) => {
  if (name === undefined) {
    const read = reading(named.get("attribute"));
    return itemsOf(items).map((one) => read(one) ?? named.get("default"));
  }
  const filter = FILTERS.get(shown(name));
  if (filter === undefined) throw new TemplateError(`the filter '${shown(name)}' is not supported`);
  return itemsOf(items).map((one) => filter([one, ...rest], named));
};

export const FILTERS: ReadonlyMap<string, Callable> = new Map([
  ...SIMPLE_FILTERS,
  ["map", map],
  ["reject", choosing(false, false)],
  ["rejectattr", choosing(false, true)],
  ["select", choosing(true, false)],
  ["selectattr", choosing(true, true)],
]);

const isSequence = (value: Value) =>
  value === undefined || typeof value === "string" || isList(value) || isDict(value);

export const TESTS = op.functions({
  boolean: (value) => typeof value === "boolean",
  callable: (value) => typeof value === "function",
  defined: (value) => value !== undefined,
  divisibleby: (value, by) => countOf(value) % countOf(by) === 0,
  even: (value) => countOf(value) % 2 === 0,
  false: (value) => value === false,
  float: (value) => typeof value === "number",
  in: (value, items) => contains(items, value),
  integer: (value) => typeof value === "bigint",
  "iterable|sequence": isSequence,
  lower: (value) => op.isLower(shown(value)),
  mapping: isDict,
  none: (value) => value === null,
  number: isNumber,
  odd: (value) => countOf(value) % 2 !== 0,
  sameas: (value, other) => value === other,
  string: (value) => typeof value === "string",
  true: (value) => value === true,
  undefined: (value) => value === undefined,
  upper: (value) => op.isUpper(shown(value)),
  "eq|==|equalto": isEqual,
  "ne|!=": (a, b) => !isEqual(a, b),
  "lt|<|lessthan": (a, b) => compare(a, b) < 0,
  "le|<=": (a, b) => compare(a, b) <= 0,
  "gt|>|greaterthan": (a, b) => compare(a, b) > 0,
  "ge|>=": (a, b) => compare(a, b) >= 0,
});

const RANGE_MAX = 100_000;

function range(first: Value, stop: Value, step: Value = 1n): Value {
  const [from, to] = stop === undefined ? [0, countOf(first)] : [countOf(first), countOf(stop)];
  const by = countOf(step);
  const length = by === 0 ? 0 : Math.max(0, Math.ceil((to - from) / by));
  if (length > RANGE_MAX) throw new TemplateError(`Range too big, the maximum is ${RANGE_MAX}`);
  return Array.from({ length }, (_, i) => BigInt(from + i * by));
}

function dictOf([given]: readonly Value[], named: Named): Map<Value, Value> {
  const pairs = isDict(given) ? [...given] : itemsOf(given).map((pair) => itemsOf(pair));
  return new Map([...pairs, ...named].map(([key, value]) => [key, value]));
}

function namespaceOf(given: readonly Value[], named: Named): Fields {
  const values = dictOf(given, named);
  return new Fields(
    (name) => values.get(name),
    (name, value) => values.set(name, value),
  );
}

/** strftime() of now, in English and in the time zone of the process. */
function timeText(format: Value): string {
  const now = new Date();
  const part = (options: Intl.DateTimeFormatOptions) => now.toLocaleString("en-US", options);
  const two = (value: number) => `${value}`.padStart(2, "0");
  const parts: Readonly<Record<string, () => string>> = {
    "%": () => "%",
    A: () => part({ weekday: "long" }),
    B: () => part({ month: "long" }),
    H: () => two(now.getHours()),
    M: () => two(now.getMinutes()),
    S: () => two(now.getSeconds()),
    Y: () => `${now.getFullYear()}`,
    a: () => part({ weekday: "short" }),
    b: () => part({ month: "short" }),
    d: () => two(now.getDate()),
    m: () => two(now.getMonth() + 1),
    y: () => two(now.getFullYear() % 100),
  };
  return textOf(format).replace(/%(-?)(.)/g, (all, plain: string, name: string) => {
    const text = parts[name]?.();
    if (text === undefined) throw new TemplateError(`strftime_now has no '${all}'`);
    return plain === "" ? text : text.replace(/^0(?=.)/, "");
  });
}

const raise = (message: Value) => {
  throw new TemplateError(shown(message));
};

export const GLOBALS: ReadonlyMap<string, Callable> = new Map<string, Callable>([
  ["dict", dictOf],
  ["namespace", namespaceOf],
  ...op.functions({ raise_exception: raise, range, strftime_now: timeText }),
]);
