// Operations of expressions on values: attributes and subscripts, arithmetic, comparisons.

import { METHODS } from "./methods.ts";
import {
  compare,
  contains,
  countOf,
  Fields,
  isDict,
  isEqual,
  isList,
  isNumber,
  numberOf,
  repr,
  shown,
  TemplateError,
  Tuple,
  typeOf,
  type Value,
} from "./values.ts";

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
