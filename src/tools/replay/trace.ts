// Recorded responses by group, as a replay reads them, and the checks of their fields. A fault names the
// file, the place in it, the field and the bound; nothing is guessed or repaired.

import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import { SEQUENCES_MAX } from "../../core/wasm/abi.ts";

/** One prompt and the responses that were recorded for it. */
export interface TraceGroup {
  readonly name: string;
  /** Empty: the recording has none. */
  readonly prompt: Int32Array;
  readonly responses: readonly Int32Array[];
}

/** Bytes of a file, in order. */
export type Chunks = AsyncIterable<Uint8Array>;

/** A draft group holds no more sequences. */
export const RESPONSES_MAX = SEQUENCES_MAX;
const TOKEN_MAX = 0x7fffffff;

/** Location of a value, for messages. */
export interface Place {
  /** File and line, or file and group. */
  readonly where: string;
  readonly field: string;
}

export function wrong(place: Place, problem: string): InvalidFieldError {
  return new InvalidFieldError({ ...place, problem });
}

export function must(value: unknown, bound: string): string {
  return value === undefined ? "is missing" : `is ${show(value)}; it must ${bound}`;
}

/** A value as it may stand in a message: short and on one line. */
function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}

/** The value as token ids, 0 <= id < 2^31. Throws AppError `invalid_field`. */
export function tokensOf(value: unknown, place: Place): Int32Array {
  if (!Array.isArray(value)) throw wrong(place, must(value, "be an array of token ids"));
  const ids: readonly unknown[] = value;
  const tokens = new Int32Array(ids.length);
  for (let i = 0; i < ids.length; i += 1) {
    const id = ids[i];
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id > TOKEN_MAX) {
      const { where, field } = place;
      const bound = `be a whole number between 0 and ${TOKEN_MAX}`;
      throw wrong({ where, field: `${field}[${i}]` }, must(id, bound));
    }
    tokens[i] = id;
  }
  return tokens;
}

/** Token ids that may be absent or null: then there are none. */
export function promptOf(value: unknown, place: Place): Int32Array {
  return value === undefined || value === null ? new Int32Array(0) : tokensOf(value, place);
}

/** A JSON object. Throws AppError `invalid_json`. */
export function objectOf(text: string, where: string): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("invalid_json", `${where}: is not valid JSON (${reason})`, { cause });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new AppError("invalid_json", `${where}: holds ${show(value)}; it must be a JSON object`);
  }
  return value as Readonly<Record<string, unknown>>;
}

export function decoded(bytes: Uint8Array, where: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new AppError("invalid_json", `${where}: is not UTF-8`, { cause });
  }
}

export function nameOf(value: unknown, place: Place): string {
  if (typeof value !== "string" || value === "") {
    throw wrong(place, must(value, "be a string that names the group"));
  }
  return value;
}
