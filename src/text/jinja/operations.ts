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
  const method = METHODS[typeOf(object)]?.[name];
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
  if (typeof object === "string") return taken.join("");
  return object instanceof Tuple ? Tuple.from(taken) : taken;
}

export function binary(operator: string, a: Value, b: Value): Value {
  switch (operator) {
    case "~":
      return shown(a) + shown(b);
    case "==":
      return isEqual(a, b);
    case "!=":
      return !isEqual(a, b);
    case "in":
      return contains(b, a);
    case "not in":
      return !contains(b, a);
    case "<":
      return compare(a, b) < 0;
    case "<=":
      return compare(a, b) <= 0;
    case ">":
      return compare(a, b) > 0;
    case ">=":
      return compare(a, b) >= 0;
    default:
  }
  if (operator === "%" && typeof a === "string") return formatted(a, b);
  if (isNumber(a) && isNumber(b)) return calculated(operator, numberOf(a), numberOf(b));
  if (operator === "+" && typeof a === "string" && typeof b === "string") return a + b;
  if (operator === "+" && isList(a) && isList(b) && typeOf(a) === typeOf(b)) {
    return a instanceof Tuple ? Tuple.from([...a, ...b]) : [...a, ...b];
  }
  if (operator === "*" && isNumber(a) !== isNumber(b)) {
    const [one, times] = isNumber(a) ? [b, countOf(a)] : [a, countOf(b)];
    if (typeof one === "string") return one.repeat(Math.max(0, times));
    const all = Array.from({ length: Math.max(0, times) }, () => one).flat();
    if (isList(one)) return one instanceof Tuple ? Tuple.from(all) : all;
  }
  const types = `'${typeOf(a)}' and '${typeOf(b)}'`;
  throw new TemplateError(`unsupported operand types for ${operator}: ${types}`);
}

function calculated(operator: string, a: bigint | number, b: bigint | number): bigint | number {
  const isDivision = operator === "/" || operator === "//" || operator === "%";
  if (isDivision && Number(b) === 0) throw new TemplateError("division by zero");
  if (typeof a === "bigint" && typeof b === "bigint") {
    // Python rounds down, JavaScript towards zero.
    const rest = operator === "//" || operator === "%" ? ((a % b) + b) % b : 0n;
    if (operator === "//") return (a - rest) / b;
    if (operator === "%") return rest;
    if (operator === "+") return a + b;
    if (operator === "-") return a - b;
    if (operator === "*") return a * b;
    if (operator === "**" && b >= 0n) return a ** b;
  }
  const x = Number(a);
  const y = Number(b);
  if (operator === "+") return x + y;
  if (operator === "-") return x - y;
  if (operator === "*") return x * y;
  if (operator === "**") return x ** y;
  if (operator === "/") return x / y;
  return operator === "//" ? Math.floor(x / y) : ((x % y) + y) % y;
}

const PLACE = /%(?:\((\w+)\))?([-+ 0]*)(\d*)(?:\.(\d+))?(.)/gs;

/** Python's `text % values`. */
export function formatted(text: string, values: Value): string {
  const given = values instanceof Tuple ? [...values] : [values];
  const filled = text.replace(PLACE, (...match) => {
    const [, name, flags, width, digits, kind] = match as (string | undefined)[];
    if (kind === "%") return "%";
    const value = name !== undefined && isDict(values) ? values.get(name) : given.shift();
    const body = written(value, kind, digits);
    const sign = body.startsWith("-") || kind === "s" ? "" : (/[+ ]/.exec(flags ?? "")?.[0] ?? "");
    const fill = flags?.includes("0") && kind !== "s" ? "0" : " ";
    const whole = sign + body;
    if (flags?.includes("-")) return whole.padEnd(Number(width));
    if (fill === " ") return whole.padStart(Number(width));
    const [minus = ""] = /^[-+ ]/.exec(whole) ?? [];
    return minus + whole.slice(minus.length).padStart(Number(width) - minus.length, "0");
  });
  const isMapping = isDict(values) || typeOf(values) === "list";
  if (given.length > 0 && !isMapping) throw new TemplateError("not all arguments were converted");
  return filled;
}

function written(value: Value, kind: string | undefined, digits: string | undefined): string {
  if (kind === "s") return shown(value).slice(0, digits === undefined ? undefined : Number(digits));
  if (kind === "r") return repr(value);
  if (kind === "f") return countOf(value).toFixed(Number(digits ?? 6));
  if (!["d", "i", "x", "X"].includes(kind ?? "")) {
    throw new TemplateError(`%${kind} is not supported`);
  }
  const number = numberOf(value);
  const whole = typeof number === "bigint" ? number : BigInt(Math.trunc(number));
  if (kind === "x") return whole.toString(16);
  return kind === "X" ? whole.toString(16).toUpperCase() : `${whole}`;
}
