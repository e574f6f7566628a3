// What Python's values can do: methods by type, attributes and subscripts, operators. Methods that change a value are left out:
// Jinja's sandbox refuses them.

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
  itemsOf,
  numberOf,
  repr,
  shown,
  TemplateError,
  Tuple,
  textOf,
  typeOf,
  type Value,
} from "./values.ts";

export type Act = (...given: Value[]) => Value;
type OfText = (text: string, ...given: Value[]) => Value;

/** Functions from rows "name|alias": or "name|alias parameter parameter", with the names of arguments after the first. */
export function functions(rows: Readonly<Record<string, Act>>): ReadonlyMap<string, Callable> {
  const all = Object.entries(rows).flatMap(([row, act]) => {
    const [names = "", ...parameters] = row.split(" ");
    const called: Callable = (given, named) => {
      const values = [...given];
      for (const [name, value] of named) {
        const at = parameters.indexOf(name);
        if (at < 0) throw new TemplateError(`unexpected argument '${name}'`);
        values[at + 1] = value;
      }
      return act(...values);
    };
    return names.split("|").map((name) => [name, called] as const);
  });
  return new Map(all);
}

/** Python's white space, which differs from JavaScript's. */
const BLANK =
  "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const IS_BLANK = new RegExp(`^[${BLANK}]$`);
const BLANKS = new RegExp(`[${BLANK}]+`);
// The constructor, because a literal must not hold control characters.
const LINES = new RegExp(`\r\n|[\n-\r${String.fromCharCode(28, 29, 30)}\x85\u2028\u2029]`);

/** Strips characters from a text's ends; null: blanks. A pattern anchored at the end is slow with many blanks inside. */
export function stripped(text: string, characters: Value, isLeft = true, isRight = true): string {
  const set = characters === undefined || characters === null ? null : textOf(characters);
  const isCut = (one: string) => (set === null ? IS_BLANK.test(one) : set.includes(one));
  let start = 0;
  let end = text.length;
  for (let one = ""; isLeft && start < end; start += one.length) {
    one = String.fromCodePoint(text.codePointAt(start) ?? 0);
    if (!isCut(one)) break;
  }
  for (let one = ""; isRight && start < end; end -= one.length) {
    one = Array.from(text.slice(Math.max(start, end - 2), end)).at(-1) ?? "";
    if (!isCut(one)) break;
  }
  return text.slice(start, end);
}

function split(text: string, separator: Value = null, max: Value = -1n): string[] {
  const by = separator === null ? BLANKS : textOf(separator);
  if (by === "") throw new TemplateError("empty separator");
  const whole = separator === null ? stripped(text, null) : text;
  const most = countOf(max);
  if (most < 0) return whole === "" && separator === null ? [] : whole.split(by);
  const parts: string[] = [];
  let rest = separator === null ? stripped(text, null, true, false) : text;
  while (parts.length < most) {
    const at = typeof by === "string" ? rest.indexOf(by) : rest.search(by);
    if (at < 0) break;
    const length = typeof by === "string" ? by.length : (by.exec(rest)?.[0].length ?? 0);
    parts.push(rest.slice(0, at));
    rest = rest.slice(at + length);
  }
  return rest === "" && separator === null ? parts : [...parts, rest];
}

function splitRight(text: string, separator: Value = null, max: Value = -1n): string[] {
  const turned = (one: string) => Array.from(one).reverse().join("");
  const by = separator === null ? null : turned(textOf(separator));
  return split(turned(text), by, max).map(turned).reverse();
}

function partition(text: string, separator: Value): Value {
  const [before = "", after] = split(text, textOf(separator), 1n);
  return Tuple.of<Value>(before, after === undefined ? "" : separator, after ?? "");
}

export function replaced(text: string, from: string, to: string, max: Value = null): string {
  let left = max === null || countOf(max) < 0 ? Number.POSITIVE_INFINITY : countOf(max);
  return text.replaceAll(from, (found) => {
    left -= 1;
    return left >= 0 ? to : found;
  });
}

export function capitalized(text: string): string {
  const [first = "", ...rest] = Array.from(text);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

function format(text: string, ...given: Value[]): string {
  return text.replace(/\{(\d*)\}|\{\{|\}\}|[{}]/g, (all, at?: string) => {
    if (at !== undefined) return shown(at === "" ? given.shift() : given[Number(at)]);
    if (all.length === 2) return all.slice(1);
    throw new TemplateError(`format() with more than {} is not supported: ${text}`);
  });
}

const isAny = (given: Value, holds: (part: string) => boolean) =>
  (given instanceof Tuple ? given : [given]).some((part) => holds(textOf(part)));

/** A place in a text in Python's characters. */
const placeOf = (text: string, at: number) =>
  BigInt(at < 0 ? at : Array.from(text.slice(0, at)).length);

/** @throws TemplateError: the place is -1, since nothing was found. */
function found(place: bigint, problem: string): bigint {
  if (place < 0n) throw new TemplateError(problem);
  return place;
}

export const isLower = (text: string) => /\p{Ll}/u.test(text) && !/\p{Lu}/u.test(text);
export const isUpper = (text: string) => /\p{Lu}/u.test(text) && !/\p{Ll}/u.test(text);

const TEXT: Readonly<Record<string, OfText>> = {
  capitalize: capitalized,
  count: (text, part) => BigInt(text.split(textOf(part)).length - 1),
  endswith: (text, end) => isAny(end, (part) => text.endsWith(part)),
  find: (text, part) => placeOf(text, text.indexOf(textOf(part))),
  format,
  index: (text, part) => found(placeOf(text, text.indexOf(textOf(part))), "substring not found"),
  isalnum: (text) => /^[\p{L}\p{N}]+$/u.test(text),
  isalpha: (text) => /^\p{L}+$/u.test(text),
  isdigit: (text) => /^\p{Nd}+$/u.test(text),
  islower: isLower,
  isspace: (text) => text !== "" && stripped(text, null) === "",
  isupper: isUpper,
  join: (text, items) => itemsOf(items).map(textOf).join(text),
  lower: (text) => text.toLowerCase(),
  lstrip: (text, characters) => stripped(text, characters, true, false),
  partition,
  removeprefix: (text, part) =>
    text.startsWith(textOf(part)) ? text.slice(textOf(part).length) : text,
  removesuffix: (text, part) =>
    text.endsWith(textOf(part)) ? text.slice(0, text.length - textOf(part).length) : text,
  "replace old new count": (text, from, to, max) => replaced(text, textOf(from), textOf(to), max),
  rfind: (text, part) => placeOf(text, text.lastIndexOf(textOf(part))),
  "rsplit sep maxsplit": splitRight,
  rstrip: (text, characters) => stripped(text, characters, false, true),
  "split sep maxsplit": split,
  splitlines: (text) => {
    const lines = text.split(LINES);
    return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
  },
  startswith: (text, begin) => isAny(begin, (part) => text.startsWith(part)),
  strip: (text, characters) => stripped(text, characters),
  title: (text) => text.replace(/\p{L}+/gu, capitalized),
  upper: (text) => text.toUpperCase(),
};

export const pairsOf = (dict: Value) =>
  isDict(dict) ? [...dict].map((pair) => Tuple.from<Value>(pair)) : [];

const DICT: Readonly<Record<string, Act>> = {
  copy: (dict) => dict,
  "get key default": (dict, key, otherwise = null) =>
    isDict(dict) && dict.has(key) ? dict.get(key) : otherwise,
  items: pairsOf,
  keys: itemsOf,
  values: (dict) => (isDict(dict) ? [...dict.values()] : []),
};

const LIST: Readonly<Record<string, Act>> = {
  copy: (list) => list,
  count: (list, value) => BigInt(itemsOf(list).filter((one) => isEqual(one, value)).length),
  index: (list, value) => {
    const at = itemsOf(list).findIndex((one) => isEqual(one, value));
    return found(BigInt(at), `${shown(value)} is not in list`);
  },
};

/** Methods by type; their first argument is the object. */
const METHODS: Readonly<Record<string, ReadonlyMap<string, Callable>>> = {
  // A text's methods are called with texts alone.
  str: functions(TEXT as Readonly<Record<string, Act>>),
  dict: functions(DICT),
  list: functions(LIST),
  tuple: functions(LIST),
};

/** Methods of Python's values and of `loop`, and functions of Jinja, that are not supported here. */
export const LACKING: ReadonlySet<string> = new Set([
  ...["center", "encode", "expandtabs", "format_map", "fromkeys", "isidentifier", "isprintable"],
  ...["istitle", "maketrans", "rindex", "swapcase", "translate", "changed"],
  ...["casefold", "isascii", "isdecimal", "isnumeric", "ljust", "rjust", "zfill"],
  ...["cycler", "joiner", "lipsum", "rpartition"],
]);

/** Attribute as in Python: `d.items` is the method even where the dict has such a key. `path`: the object's name in messages. */
export function attributeOf(object: Value, name: string, path?: string): Value {
  const method = METHODS[typeOf(object)]?.get(name);
  if (method !== undefined) return (given, named) => method([object, ...given], named);
  if (isDict(object) || object instanceof Fields) return object.get(name);
  if (object !== undefined) return undefined;
  throw new TemplateError(path === undefined ? "a value is undefined" : `'${path}' is undefined`);
}

/** Subscript as in Jinja: `d["items"]` is the key's value, or the method if there is no such key. */
export function itemOf(object: Value, key: Value, path?: string): Value {
  if (isDict(object) && object.has(key)) return object.get(key);
  if (isNumber(key) && isList(object)) return object.at(countOf(key));
  if (isNumber(key) && typeof object === "string") return Array.from(object).at(countOf(key));
  return typeof key === "string" || object === undefined
    ? attributeOf(object, shown(key), path)
    : undefined;
}

/** Python's object[first:stop:step]; null: the bound is not given. */
export function sliced(object: Value, bounds: readonly Value[]): Value {
  if (typeof object !== "string" && !isList(object)) {
    throw new TemplateError(`'${typeOf(object)}' object cannot be sliced`);
  }
  const items = Array.from<Value>(object);
  const [first, stop, step = 1] = bounds.map((one) => (one === null ? undefined : countOf(one)));
  if (step === 0) throw new TemplateError("slice step cannot be zero");
  const [least, most] = step > 0 ? [0, items.length] : [-1, items.length - 1];
  const place = (at: number) => Math.min(most, Math.max(least, at < 0 ? at + items.length : at));
  const [start, end] = step > 0 ? [least, most] : [most, least];
  const last = stop === undefined ? end : place(stop);
  const taken: Value[] = [];
  let at = first === undefined ? start : place(first);
  for (; step > 0 ? at < last : at > last; at += step) taken.push(items[at]);
  return typeof object === "string" ? taken.join("") : alike(object, taken);
}

export type Operation = (a: Value, b: Value) => Value;

const OPERATIONS: Readonly<Record<string, Operation>> = {
  "~": (a, b) => shown(a) + shown(b),
  "==": isEqual,
  "!=": (a, b) => !isEqual(a, b),
  in: (a, b) => contains(b, a),
  "not in": (a, b) => !contains(b, a),
  "<": (a, b) => compare(a, b) < 0,
  "<=": (a, b) => compare(a, b) <= 0,
  ">": (a, b) => compare(a, b) > 0,
  ">=": (a, b) => compare(a, b) >= 0,
};

/** Arithmetic of integers and of floats. Python rounds down, JavaScript towards zero. */
const INTEGERS: Readonly<Record<string, (a: bigint, b: bigint) => bigint | number>> = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => Number(a) / Number(b),
  "//": (a, b) => (a - (((a % b) + b) % b)) / b,
  "%": (a, b) => ((a % b) + b) % b,
  "**": (a, b) => (b >= 0n ? a ** b : Number(a) ** Number(b)),
};
const FLOATS: Readonly<Record<string, (a: number, b: number) => number>> = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  "//": (a, b) => Math.floor(a / b),
  "%": (a, b) => ((a % b) + b) % b,
  "**": (a, b) => a ** b,
};

/** What an infix operator does with two values. */
export function operation(operator: string): Operation {
  return OPERATIONS[operator] ?? ((a, b) => calculated(operator, a, b));
}

function calculated(operator: string, a: Value, b: Value): Value {
  if (operator === "%" && typeof a === "string") return formatted(a, b);
  if (isNumber(a) && isNumber(b)) {
    const x = numberOf(a);
    const y = numberOf(b);
    if (["/", "//", "%"].includes(operator) && Number(y) === 0) {
      throw new TemplateError("division by zero");
    }
    const areIntegers = typeof x === "bigint" && typeof y === "bigint";
    return areIntegers ? INTEGERS[operator]?.(x, y) : FLOATS[operator]?.(Number(x), Number(y));
  }
  if (operator === "+" && typeof a === "string" && typeof b === "string") return a + b;
  if (operator === "+" && isList(a) && isList(b) && typeOf(a) === typeOf(b)) {
    return alike(a, [...a, ...b]);
  }
  if (operator === "*" && isNumber(a) !== isNumber(b)) {
    const [one, number] = isNumber(a) ? [b, a] : [a, b];
    const times = Math.max(0, countOf(number));
    if (typeof one === "string") return one.repeat(times);
    if (isList(one)) return alike(one, Array.from({ length: times }, () => one).flat());
  }
  const types = `'${typeOf(a)}' and '${typeOf(b)}'`;
  throw new TemplateError(`unsupported operand types for ${operator}: ${types}`);
}

/** The items as a list of the same type. */
function alike(list: readonly Value[], items: readonly Value[]): readonly Value[] {
  return list instanceof Tuple ? Tuple.from(items) : items;
}

const PLACE = /%(?:\((\w+)\))?([-+ 0]*)(\d*)(?:\.(\d+))?(.)/gs;

/** Python's `text % values`. */
export function formatted(text: string, values: Value): string {
  const given = values instanceof Tuple ? [...values] : [values];
  const filled = text.replace(PLACE, (...match) => {
    const [, name, flags = "", width, digits, kind = ""] = match as (string | undefined)[];
    if (kind === "%") return "%";
    const value = name !== undefined && isDict(values) ? values.get(name) : given.shift();
    const isText = kind === "s" || kind === "r";
    const body = isText ? textAs(kind, value, digits) : numeral(kind, value, digits);
    const sign = isText || body.startsWith("-") ? "" : (/[+ ]/.exec(flags)?.[0] ?? "");
    const whole = sign + body;
    if (flags.includes("-")) return whole.padEnd(Number(width));
    if (isText || !flags.includes("0")) return whole.padStart(Number(width));
    const [minus = ""] = /^[-+ ]/.exec(whole) ?? [];
    return minus + whole.slice(minus.length).padStart(Number(width) - minus.length, "0");
  });
  const isMapping = isDict(values) || typeOf(values) === "list";
  if (given.length > 0 && !isMapping) throw new TemplateError("not all arguments were converted");
  return filled;
}

function textAs(kind: string, value: Value, digits: string | undefined): string {
  const text = kind === "r" ? repr(value) : shown(value);
  return digits === undefined ? text : text.slice(0, Number(digits));
}

function numeral(kind: string, value: Value, digits: string | undefined): string {
  if (kind === "f") return countOf(value).toFixed(Number(digits ?? 6));
  if (!/^[dixX]$/.test(kind)) throw new TemplateError(`%${kind} is not supported`);
  const number = numberOf(value);
  const whole = typeof number === "bigint" ? number : BigInt(Math.trunc(number));
  const hex = whole.toString(16);
  if (kind === "x") return hex;
  return kind === "X" ? hex.toUpperCase() : `${whole}`;
}
