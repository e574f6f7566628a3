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

/** Names of the parameters after the first, of functions that have any. */
const PARAMETERS: Readonly<Record<string, string>> = {
  default: "default_value boolean",
  dictsort: "case_sensitive by reverse",
  float: "default",
  get: "key default",
  indent: "width first blank",
  int: "default base",
  join: "d attribute",
  max: "case_sensitive attribute",
  min: "case_sensitive attribute",
  replace: "old new count",
  round: "precision method",
  rsplit: "sep maxsplit",
  sort: "reverse case_sensitive attribute",
  split: "sep maxsplit",
  sum: "attribute start",
  tojson: "ensure_ascii indent separators sort_keys",
  trim: "chars",
};

/** Wraps a function so that it takes arguments by name, too. */
export function callable([name, act]: [string, Act]): [string, Callable] {
  const parameters = PARAMETERS[name]?.split(" ") ?? [];
  const called: Callable = (given, named) => {
    const all = [...given];
    for (const [one, value] of named) {
      const at = parameters.indexOf(one);
      if (at >= 0) all[at + 1] = value;
      else throw new TemplateError(`unexpected argument '${one}'`);
    }
    return act(...all);
  };
  return [name, called];
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
    const found = typeof by === "string" ? rest.indexOf(by) : rest.search(by);
    if (found < 0) break;
    const length = typeof by === "string" ? by.length : (by.exec(rest)?.[0].length ?? 0);
    parts.push(rest.slice(0, found));
    rest = rest.slice(found + length);
  }
  return rest === "" && separator === null ? parts : [...parts, rest];
}

function splitRight(text: string, separator: Value = null, max: Value = -1n): string[] {
  const turned = (one: string) => Array.from(one).reverse().join("");
  const by = separator === null ? null : turned(textOf(separator));
  return split(turned(text), by, max).map(turned).reverse();
}

function partition(text: string, separator: string, at: number): Value {
  return Tuple.of<Value>(text.slice(0, at), separator, text.slice(at + separator.length));
}

export function replaced(text: string, from: string, to: string, max: Value = null): string {
  if (max === null || countOf(max) < 0) return text.replaceAll(from, () => to);
  let left = countOf(max);
  return text.replaceAll(from, (found) => {
    left -= 1;
    return left >= 0 ? to : found;
  });
}

export function capitalized(text: string): string {
  const [first = "", ...rest] = Array.from(text);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

const isOneOf = (given: Value, holds: (part: string) => boolean) =>
  (given instanceof Tuple ? given : [given]).some((part) => holds(textOf(part)));
const found = (text: string, at: number) =>
  BigInt(at < 0 ? at : Array.from(text.slice(0, at)).length);

type OfText = (text: string, ...given: Value[]) => Value;

export const TEXT: Readonly<Record<string, OfText>> = {
  capitalize: capitalized,
  count: (text, part) => BigInt(text.split(textOf(part)).length - 1),
  endswith: (text, end) => isOneOf(end, (part) => text.endsWith(part)),
  find: (text, part) => found(text, text.indexOf(textOf(part))),
  format: (text, ...given) =>
    text.replace(/\{(\d*)\}|\{\{|\}\}|[{}]/g, (all, at?: string) => {
      if (at !== undefined) return shown(at === "" ? given.shift() : given[Number(at)]);
      if (all.length === 2) return all.slice(1);
      throw new TemplateError(`format() with more than {} is not supported: ${text}`);
    }),
  index: (text, part) => {
    const at = text.indexOf(textOf(part));
    if (at < 0) throw new TemplateError("substring not found");
    return found(text, at);
  },
  isalnum: (text) => /^[\p{L}\p{N}]+$/u.test(text),
  isalpha: (text) => /^\p{L}+$/u.test(text),
  isdigit: (text) => /^\p{Nd}+$/u.test(text),
  islower: (text) => /\p{Ll}/u.test(text) && !/\p{Lu}/u.test(text),
  isspace: (text) => text !== "" && stripped(text, null) === "",
  isupper: (text) => /\p{Lu}/u.test(text) && !/\p{Ll}/u.test(text),
  join: (text, items) => itemsOf(items).map(textOf).join(text),
  lower: (text) => text.toLowerCase(),
  lstrip: (text, characters) => stripped(text, characters, true, false),
  partition: (text, sep) => {
    const at = text.indexOf(textOf(sep));
    return at < 0 ? Tuple.of<Value>(text, "", "") : partition(text, textOf(sep), at);
  },
  removeprefix: (text, part) => {
    return text.startsWith(textOf(part)) ? text.slice(textOf(part).length) : text;
  },
  removesuffix: (text, part) => {
    return text.endsWith(textOf(part)) ? text.slice(0, text.length - textOf(part).length) : text;
  },
  replace: (text, from, to, max) => replaced(text, textOf(from), textOf(to), max),
  rfind: (text, part) => found(text, text.lastIndexOf(textOf(part))),
  rsplit: splitRight,
  rstrip: (text, characters) => stripped(text, characters, false, true),
  split,
  splitlines: (text) => {
    const lines = text.split(LINES);
    return lines.at(-1) === "" ? lines.slice(0, -1) : lines;
  },
  startswith: (text, begin) => isOneOf(begin, (part) => text.startsWith(part)),
  strip: (text, characters) => stripped(text, characters),
  title: (text) => text.replace(/\p{L}+/gu, capitalized),
  upper: (text) => text.toUpperCase(),
};

export const pairsOf = (dict: Value) =>
  isDict(dict) ? [...dict].map((pair) => Tuple.from<Value>(pair)) : [];

const DICT: Readonly<Record<string, Act>> = {
  copy: (dict) => dict,
  get: (dict, key, otherwise = null) => (isDict(dict) && dict.has(key) ? dict.get(key) : otherwise),
  items: pairsOf,
  keys: (dict) => itemsOf(dict),
  values: (dict) => (isDict(dict) ? [...dict.values()] : []),
};

const LIST: Readonly<Record<string, Act>> = {
  copy: (list) => list,
  count: (list, value) => BigInt(itemsOf(list).filter((one) => isEqual(one, value)).length),
  index: (list, value) => {
    const at = itemsOf(list).findIndex((one) => isEqual(one, value));
    if (at < 0) throw new TemplateError(`${shown(value)} is not in list`);
    return BigInt(at);
  },
};

const methods = (table: Readonly<Record<string, Act>>) =>
  Object.fromEntries(Object.entries(table).map(callable));
const ofText = ([name, act]: [string, OfText]): [string, Act] => [
  name,
  (text, ...given) => act(textOf(text), ...given),
];

/** Methods by type; their first argument is the object. */
export const METHODS: Readonly<Record<string, Readonly<Record<string, Callable>>>> = {
  str: methods(Object.fromEntries(Object.entries(TEXT).map(ofText))),
  dict: methods(DICT),
  list: methods(LIST),
  tuple: methods(LIST),
};

/** Methods of Python's values and of `loop`, and functions of Jinja, that are not supported here. */
export const LACKING: ReadonlySet<string> = new Set([
  ...["center", "encode", "expandtabs", "format_map", "fromkeys", "isidentifier", "isprintable"],
  ...["istitle", "maketrans", "rindex", "swapcase", "translate", "changed"],
  ...["casefold", "isascii", "isdecimal", "isnumeric", "ljust", "rjust", "zfill"],
  ...["cycler", "joiner", "lipsum", "rpartition"],
]);
