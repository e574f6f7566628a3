// Pieces of request schemas, and the one way a body is checked against one. Every message names the field,
// what was seen and the bound. Fields that are null count as absent, as vLLM has it; an unknown field is
// refused, because otherwise the client would get an answer without its effect, and no sign of that.

import { type ConversionConfig, toJsonSchema } from "@valibot/to-json-schema";
import * as v from "valibot";
import { unknownName } from "../../core/base/unknown-name.ts";
import { invalid, type Schema } from "../route.ts";

interface Seen {
  readonly input: unknown;
}

const SHOWN_CHARACTERS = 80;
/** Longest name a client may give to a request, a group or a salt (vLLM's bound on cache_salt). */
const NAME_CHARACTERS_MAX = 1024;

/** A value as it may stand in a message: 1e999 is read as Infinity, which JSON has no word for. */
export function show(value: unknown): string {
  const cut = (_key: string, one: unknown) =>
    isList(one) ? Array.from(one.slice(0, SHOWN_CHARACTERS)) : one;
  const json = typeof value === "number" ? undefined : JSON.stringify(value, cut);
  const text = json ?? String(value);
  return text.length <= SHOWN_CHARACTERS ? text : `${text.slice(0, SHOWN_CHARACTERS)}...`;
}

/** The message about a value outside of `bound`. */
export function isNot(bound: string): (seen: Seen) => string {
  return ({ input }) => `is ${show(input)}, not ${bound}`;
}

export const flag = v.nullish(v.boolean(isNot("true or false")));

export function integer(min: number, max: number) {
  const message = isNot(`a whole number in ${min}..${max}`);
  return v.nullish(v.pipe(within(min, max, message), v.integer(message)));
}

export function within(min: number, max: number, message = isNot(`in ${min}..${max}`)) {
  return v.pipe(v.number(message), v.minValue(min, message), v.maxValue(max, message));
}

export function number(min: number, max: number) {
  return v.nullish(within(min, max));
}

/** A number in the interval (min, max]. */
export function numberAbove(min: number, max: number) {
  const message = isNot(`a number > ${min} and <= ${max}`);
  return v.nullish(v.pipe(v.number(message), v.gtValue(min, message), v.maxValue(max, message)));
}

export function oneOf<const T extends readonly string[]>(...names: T) {
  return v.nullish(v.picklist(names, isNot(`one of ${names.join(", ")}`)));
}

/** Names go into headers and logs, which cannot hold half a surrogate pair. */
export const wellFormed = v.check(
  (value: string) => value.isWellFormed(),
  ({ input }: Seen) => `is ${show(input)}, which holds half a character`,
);

const nameMessage = isNot(`a text of 1..${NAME_CHARACTERS_MAX} characters`);
export const name = v.nullish(
  v.pipe(
    v.string(nameMessage),
    v.minLength(1, nameMessage),
    v.maxLength(NAME_CHARACTERS_MAX, nameMessage),
    wellFormed,
  ),
);

export const text = v.string(isNot("a text"));

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export const fieldsOfAnyKind = v.custom<Record<string, unknown>>(isObject, isNot("an object"));

export function listOf<T extends v.GenericSchema>(item: T, max: number) {
  const message = isNot(`a list of at most ${max}`);
  return v.pipe(
    v.array(item, message),
    v.maxLength(max, ({ input }: Seen) => `has ${lengthOf(input)} entries, more than ${max}`),
  );
}

function lengthOf(value: unknown): number {
  return isList(value) ? value.length : 0;
}

/** Token ids; those of a large body are packed (body-reader.ts). */
export type TokenList = readonly number[] | Int32Array;

function isList(value: unknown): value is unknown[] | Int32Array {
  return Array.isArray(value) || value instanceof Int32Array;
}

const TOKEN_MAX = 2 ** 31 - 1;

function isToken(value: unknown): value is number {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) <= TOKEN_MAX;
}

export function isTokenList(value: unknown): value is TokenList {
  if (value instanceof Int32Array) return !value.some((token) => token < 0);
  return Array.isArray(value) && value.every(isToken);
}

/** Index of the first token that is not below `bound`; -1: all are. Lists may have millions of tokens. */
export function indexBeyond(tokens: TokenList, bound: number): number {
  for (let at = 0; at < tokens.length; at += 1) if ((tokens[at] ?? 0) >= bound) return at;
  return -1;
}

function tokenListProblem({ input }: Seen): string {
  if (!isList(input)) return isNot("a list of token ids")({ input });
  const at = input.findIndex((token: unknown) => !isToken(token));
  return `holds ${show(input[at])} at index ${at}, not a token id`;
}

/** Schema of a list of tokens, with one check for the whole list: prompts have thousands of tokens. */
export const tokenList = v.custom<TokenList>(isTokenList, tokenListProblem);

export function tokenListOf(max: number) {
  return v.pipe(
    tokenList,
    v.check(
      (tokens) => tokens.length <= max,
      ({ input }: Seen) => `has ${lengthOf(input)} entries, more than ${max}`,
    ),
  );
}

/** A field that must be absent, or hold one of the `harmless` values; anything else cannot be honoured. */
export function unsupported(why: string, ...harmless: readonly unknown[]) {
  return v.nullish(
    v.custom<unknown>(
      (value) => harmless.includes(value),
      ({ input }: Seen) => `is ${show(input)}, which cannot be honoured: ${why}`,
    ),
  );
}

const ignored = v.nullish(v.unknown());

/** Fields that are accepted without effect, as they change nothing that a client could see in the answer. */
export function ignoring<const N extends string>(...names: readonly N[]) {
  return alike(names, ignored);
}

/** Fields that are refused for one reason, whatever they hold. */
export function refusing<const N extends string>(why: string, ...names: readonly N[]) {
  return alike(names, unsupported(why));
}

function alike<N extends string, T>(names: readonly N[], schema: T): Record<N, T> {
  return Object.fromEntries(names.map((one) => [one, schema])) as Record<N, T>;
}

/** The body without null fields, unknown ones too: some clients send every field that they have. */
function withoutNulls(body: unknown): unknown {
  if (!isObject(body)) return body;
  const present = Object.entries(body).filter(([, value]) => value !== null);
  return Object.fromEntries(
    present.map(([key, value]) => {
      if (key !== "sampling_params") return [key, value];
      return [key, Array.isArray(value) ? value.map(withoutNulls) : withoutNulls(value)];
    }),
  );
}

const PER_PROMPT = new WeakMap<object, v.GenericSchema>();

/** A value for all prompts, or a list with one for each. Lazy, so that a message names what is wrong within it. */
export function perPrompt<T extends v.GenericSchema>(schema: T) {
  const list = v.array(schema);
  const either = v.lazy((input): typeof list | T => (Array.isArray(input) ? list : schema));
  PER_PROMPT.set(either, schema);
  return v.nullish(either);
}

/** Maximum of fields, more than any request has: a hundred thousand take seconds to check. */
const FIELDS_MAX = 1024;

/** Checks a body against a schema. @throws InvalidFieldError naming the first field that is wrong. */
export function checked<T extends v.GenericSchema>(schema: T, body: unknown): v.InferOutput<T> {
  if (isObject(body) && Object.keys(body).length > FIELDS_MAX) {
    throw invalid("body", `has more than ${FIELDS_MAX} fields`);
  }
  const result = v.safeParse(schema, withoutNulls(body), { abortEarly: true });
  if (result.success) return result.output;
  const [issue] = result.issues;
  const path = issue.path?.map(({ key }) => String(key)).join(".") ?? "";
  if (path === "") throw invalid("body", `is ${show(body)}, not an object`);
  const isUnknown = issue.expected === "never";
  // The value itself is no object, or it is no field that is missing or unknown.
  const isValue = issue.expected === "Object" || !/^(?:strict|loose)_object$/.test(issue.type);
  if (isValue) throw invalid(path, issue.message);
  throw invalid(path, isUnknown ? unknownField(schema, issue.path) : "is missing");
}

const OBJECT_SCHEMA = { type: "object" } as const;
const TOKEN_LIST_SCHEMA = { type: "array", items: { type: "integer", minimum: 0 } } as const;

export function jsonSchemaOf(schema: Schema): object {
  if (!("~standard" in schema)) return schema;
  const config: ConversionConfig = {
    errorMode: "ignore",
    typeMode: "input",
    overrideSchema: ({ valibotSchema }) => {
      if (valibotSchema === tokenList) return TOKEN_LIST_SCHEMA;
      const single = PER_PROMPT.get(valibotSchema);
      if (single !== undefined) {
        const items = jsonSchemaOf(single);
        return { anyOf: [items, { type: "array", items }] };
      }
      return valibotSchema === fieldsOfAnyKind ? OBJECT_SCHEMA : null;
    },
  };
  return toJsonSchema(schema as v.GenericSchema, config);
}

/** The parts of a valibot schema that tell which fields an object has. */
interface Shape {
  readonly entries?: Readonly<Record<string, Shape>>;
  readonly wrapped?: Shape;
  readonly item?: Shape;
  /** Schema that depends on the value. */
  readonly getter?: (input: unknown) => Shape;
}

/** The objects within a schema: their places, as messages name them, and their fields. */
function objectsIn({ entries, wrapped, item, getter }: Shape, at = ""): [string, string[]][] {
  if (wrapped !== undefined) return objectsIn(wrapped, at);
  if (getter !== undefined) return objectsIn(getter({}), at);
  if (item !== undefined) return objectsIn(item, `each of ${at}`);
  if (entries === undefined) return [];
  const inner = Object.entries(entries).flatMap(([field, entry]) =>
    objectsIn(entry, at === "" ? field : `${at}.${field}`),
  );
  return [[at, Object.keys(entries)], ...inner];
}

/** The message about the last key of `path`, which the schema's object does not have. */
export function unknownField(schema: object, path: readonly { key: unknown }[] = []): string {
  const keys = path.map(({ key }) => String(key));
  const name = keys.pop() ?? "";
  const place = keys.filter((key) => !/^\d+$/.test(key)).join(".");
  const objects = objectsIn(schema).sort(([a], [b]) => a.length - b.length);
  const own = objects.find(([at]) => at.replaceAll("each of ", "") === place);
  const [home] = objects.find((one) => one !== own && one[1].includes(name)) ?? [];
  if (home === undefined) return unknownName(name, own?.[1] ?? []);
  return `is not known here; it belongs in ${home || "the body"}`;
}
