// Methods of Python's values, by type. Those that change a value are left out: Jinja's sandbox refuses them.

import {
  type Callable,
  countOf,
  isDict,
  isEqual,
  itemsOf,
  shown,
  TemplateError,
  Tuple,
  textOf,
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
    const isPair = /^[\ud800-\udbff][\udc00-\udfff]$/.test(text.slice(end - 2, end));
    one = text.slice(isPair ? end - 2 : end - 1, end);
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
  const [before = "", ...after] = text.split(textOf(separator));
  const rest = after.join(textOf(separator));
  return Tuple.of<Value>(before, after.length === 0 ? "" : separator, rest);
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
export const METHODS: Readonly<Record<string, ReadonlyMap<string, Callable>>> = {
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
