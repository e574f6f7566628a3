// Values of templates as Python has them: ints are bigint and floats number, so that 1 and 1.0 stay two; a dict is a Map, in the
// order of its keys; a list an array; None null; what is not defined undefined. How they compare, add up and read as text.

export type Value =
  | undefined
  | null
  | boolean
  | bigint
  | number
  | string
  | readonly Value[]
  | ReadonlyMap<Value, Value>
  | Fields
  | Callable;
export type Dict = ReadonlyMap<Value, Value>;
export type Named = ReadonlyMap<string, Value>;
export type Callable = (args: readonly Value[], named: Named) => Value;

/** An error of a template, which Jinja would raise, too. */
export class TemplateError extends Error {}

export class Tuple extends Array<Value> {}

/** An object with attributes alone: `loop`, a namespace. */
export class Fields {
  readonly get: (name: string) => Value;
  /** Sets an attribute; null: none can be set. */
  readonly set: ((name: string, value: Value) => void) | null;

  constructor(get: Fields["get"], set: Fields["set"] = null) {
    this.get = get;
    this.set = set;
  }
}

export function isDict(value: Value): value is Dict {
  return value instanceof Map;
}

export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value);
}

export function isNumber(value: Value): value is bigint | number | boolean {
  return typeof value === "bigint" || typeof value === "number" || typeof value === "boolean";
}

/** Name of a value's type in messages. */
export function typeOf(value: Value): string {
  if (isList(value)) return value instanceof Tuple ? "tuple" : "list";
  if (isDict(value)) return "dict";
  const names: Readonly<Record<string, string>> = {
    undefined: "Undefined",
    boolean: "bool",
    bigint: "int",
    number: "float",
    string: "str",
    function: "function",
  };
  return value === null ? "NoneType" : (names[typeof value] ?? "object");
}

export function isTrue(value: Value): boolean {
  if (isList(value)) return value.length > 0;
  return isDict(value) ? value.size > 0 : Boolean(value);
}

/** The value as a number. @throws TemplateError: it is not a number. */
export function numberOf(value: Value): bigint | number {
  if (typeof value === "boolean") return value ? 1n : 0n;
  if (typeof value === "bigint" || typeof value === "number") return value;
  throw new TemplateError(`${typeOf(value)} is no number`);
}

/** A number for counts and positions, which are small. */
export function countOf(value: Value): number {
  return Number(numberOf(value));
}

export function textOf(value: Value): string {
  if (typeof value === "string") return value;
  throw new TemplateError(`expected a string, got ${typeOf(value)}`);
}

/** The items of a value. @throws TemplateError: it cannot be iterated. */
export function itemsOf(value: Value): readonly Value[] {
  if (value === undefined) return [];
  if (isList(value)) return value;
  if (isDict(value)) return [...value.keys()];
  if (typeof value === "string") return Array.from(value);
  throw new TemplateError(`'${typeOf(value)}' object is not iterable`);
}

export function lengthOf(value: Value): bigint {
  if (isDict(value)) return BigInt(value.size);
  if (isList(value) || typeof value === "string" || value === undefined) {
    return BigInt(itemsOf(value).length);
  }
  throw new TemplateError(`object of type '${typeOf(value)}' has no len()`);
}

export function isEqual(a: Value, b: Value): boolean {
  if (isNumber(a) && isNumber(b)) return compare(a, b) === 0;
  if (isList(a) && isList(b)) {
    const isSameKind = a instanceof Tuple === b instanceof Tuple;
    return isSameKind && a.length === b.length && a.every((one, i) => isEqual(one, b[i]));
  }
  if (isDict(a) && isDict(b)) {
    return (
      a.size === b.size && [...a].every(([key, one]) => b.has(key) && isEqual(one, b.get(key)))
    );
  }
  return a === b;
}

/** Compares two values; negative: a is before b. @throws TemplateError: they have no order. */
export function compare(a: Value, b: Value): number {
  if (isNumber(a) && isNumber(b)) {
    const x = numberOf(a);
    const y = numberOf(b);
    return x < y ? -1 : Number(x > y);
  }
  if (typeof a === "string" && typeof b === "string") return a < b ? -1 : Number(a > b);
  if (isList(a) && isList(b)) {
    const at = a.findIndex((one, i) => i >= b.length || !isEqual(one, b[i]));
    return at < 0 || at >= b.length ? a.length - b.length : compare(a[at], b[at]);
  }
  throw new TemplateError(`'${typeOf(a)}' and '${typeOf(b)}' have no order`);
}

export function contains(container: Value, value: Value): boolean {
  if (typeof container === "string") return container.includes(textOf(value));
  if (isDict(container)) return container.has(value);
  return itemsOf(container).some((one) => isEqual(one, value));
}

/** Python's str(): the text that `{{ value }}` shows. */
export function shown(value: Value): string {
  if (typeof value === "string") return value;
  return value === undefined ? "" : repr(value);
}

/** Python's repr(): how a value reads within a list. */
export function repr(value: Value): string {
  switch (typeof value) {
    case "string":
      return quoted(value);
    case "boolean":
      return value ? "True" : "False";
    case "bigint":
      return `${value}`;
    case "number":
      return floatText(value, ["inf", "nan"]);
    case "undefined":
      return "Undefined";
    default:
  }
  if (value === null) return "None";
  if (isDict(value)) {
    return `{${[...value].map(([key, one]) => `${repr(key)}: ${repr(one)}`).join(", ")}}`;
  }
  if (!isList(value)) return `<${typeOf(value)}>`;
  const all = value.map(repr).join(", ");
  if (!(value instanceof Tuple)) return `[${all}]`;
  return value.length === 1 ? `(${all},)` : `(${all})`;
}

const ESCAPES: ReadonlyMap<string, string> = new Map([
  ["\n", "\\n"],
  ["\r", "\\r"],
  ["\t", "\\t"],
  ["\\", "\\\\"],
]);

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inside = text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\xa0\\'"]/gu, (one) => {
    if (one === "'" || one === '"') return one === quote ? `\\${one}` : one;
    const code = one.codePointAt(0) ?? 0;
    const hex = code.toString(16);
    const wide = code > 0xffff ? `\\U${hex.padStart(8, "0")}` : `\\u${hex.padStart(4, "0")}`;
    return ESCAPES.get(one) ?? (code < 0x100 ? `\\x${hex.padStart(2, "0")}` : wide);
  });
  return `${quote}${inside}${quote}`;
}

/** The shortest digits that read as the same float, written as Python does: 1.0, 1e+16, 1e-05. */
function floatText(value: number, [infinity, nan]: readonly [string, string]): string {
  if (Number.isNaN(value)) return nan;
  if (!Number.isFinite(value)) return value < 0 ? `-${infinity}` : infinity;
  if (Object.is(value, -0)) return "-0.0";
  const [digits = "", exponent = ""] = value.toExponential().split("e");
  const power = Number(exponent);
  if (power < -4 || power >= 16) {
    const sign = power < 0 ? "-" : "+";
    return `${digits}e${sign}${`${Math.abs(power)}`.padStart(2, "0")}`;
  }
  return Number.isInteger(value) ? `${value}.0` : `${value}`;
}

export interface JsonStyle {
  readonly indent: string | null;
  readonly separators: readonly [string, string];
  readonly isAscii: boolean;
  readonly isSorted: boolean;
}

/** Python's json.dumps(). @throws TemplateError: JSON cannot express the value. */
export function jsonOf(value: Value, style: JsonStyle, margin = "\n"): string {
  if (typeof value === "string") {
    const text = JSON.stringify(value);
    const escaped = (one: string) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;
    return style.isAscii ? text.replace(/[\x7f-\uffff]/g, escaped) : text;
  }
  if (typeof value === "number") return floatText(value, ["Infinity", "NaN"]);
  if (value === null || typeof value === "boolean" || typeof value === "bigint") return `${value}`;
  const inner = style.indent === null ? "" : margin + style.indent;
  const outer = style.indent === null ? "" : margin;
  const [comma, colon] = style.separators;
  const around = (open: string, items: readonly string[], close: string) =>
    items.length === 0
      ? open + close
      : `${open}${inner}${items.join(comma + inner)}${outer}${close}`;
  const written = (one: Value) => jsonOf(one, style, margin + (style.indent ?? ""));
  if (isList(value)) return around("[", value.map(written), "]");
  if (!isDict(value)) {
    throw new TemplateError(`Object of type ${typeOf(value)} is not JSON serializable`);
  }
  const entries = [...value];
  if (style.isSorted) entries.sort(([a], [b]) => compare(a, b));
  const name = (key: Value) => written(typeof key === "string" ? key : jsonOf(key, style));
  const fields = entries.map(([key, one]) => `${name(key)}${colon}${written(one)}`);
  return around("{", fields, "}");
}

/** Prefix of field names that look like numbers, because JavaScript would put these first. */
const MARK = "\0#";
/** Such a name after a bracket or a comma; within a string its quotes would be escaped. */
const NUMBER_NAMES = /([{,]\s*")(?=\d+"\s*:)/g;

/** Python's json.loads(). @throws SyntaxError. */
export function parsedJson(text: string): Value {
  const marked = text.replace(NUMBER_NAMES, "$1\\u0000#");
  return JSON.parse(marked, ((
    _name: string,
    value: unknown,
    { source = "" }: { source?: string },
  ) => {
    if (typeof value === "number") return /^-?\d+$/.test(source) ? BigInt(source) : value;
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    if (!isObject || value instanceof Map) return value;
    const plain = (name: string) => (name.startsWith(MARK) ? name.slice(MARK.length) : name);
    return new Map(Object.entries(value).map(([name, one]) => [plain(name), one]));
  }) as (name: string, value: unknown) => unknown) as Value;
}
