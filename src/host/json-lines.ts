// Reads files of JSON lines from users, plain or gzipped, one line at a time, with a bound on its length. An error names
// the file, the line, the field, its value and what is allowed; nothing is guessed or repaired.

import { createReadStream } from "node:fs";
import { pipeline, Readable } from "node:stream";
import { createGunzip } from "node:zlib";
import { AppError, errorText, fileProblem, InvalidFieldError } from "../core/base/errors.ts";

/** Bytes of a file, in order. */
export type Chunks = AsyncIterable<Uint8Array>;

const NEWLINE = 0x0a;
const UTF8 = new TextDecoder("utf-8", { fatal: true });

/** @throws AppError usage: the file cannot be read. */
export async function* chunksOf(path: string): Chunks {
  const file = createReadStream(path);
  // The reader of the last stream meets an error of the first.
  const bytes = path.endsWith(".gz") ? pipeline(file, createGunzip(), () => {}) : file;
  try {
    for await (const chunk of Readable.from(bytes)) yield chunk as Uint8Array;
  } catch (cause) {
    throw new AppError("usage", `cannot read ${path}: ${fileProblem(cause)}`, { cause });
  } finally {
    file.destroy();
    bytes.destroy();
  }
}

/** The lines that are not blank, split at LF or CRLF. @throws AppError invalid_json. */
export async function* linesOf(
  file: string,
  chunks: Chunks,
  bytesMax: number,
): AsyncGenerator<{ readonly line: number; readonly where: string; readonly text: string }> {
  let pieces: Uint8Array[] = [];
  let bytes = 0;
  let line = 1;
  const add = (piece: Uint8Array) => {
    bytes += piece.length;
    pieces.push(piece);
    if (bytes <= bytesMax) return;
    throw new AppError("invalid_json", `${file}:${line}: is longer than ${bytesMax} bytes`);
  };
  const takeLine = () => {
    const text = decoded(Buffer.concat(pieces), `${file}:${line}`);
    pieces = [];
    bytes = 0;
    return text;
  };
  for await (const chunk of chunks) {
    let from = 0;
    for (let to = chunk.indexOf(NEWLINE); to >= 0; to = chunk.indexOf(NEWLINE, from)) {
      add(chunk.subarray(from, to));
      const text = takeLine();
      if (text.trim() !== "") yield { line, where: `${file}:${line}`, text };
      line += 1;
      from = to + 1;
    }
    add(chunk.subarray(from));
  }
  const text = takeLine();
  if (text.trim() !== "") yield { line, where: `${file}:${line}`, text };
}

export function decoded(bytes: Uint8Array, where: string): string {
  try {
    return UTF8.decode(bytes);
  } catch (cause) {
    throw new AppError("invalid_json", `${where}: is not UTF-8`, { cause });
  }
}

/** @throws AppError invalid_json: `text` is no JSON object. */
export function objectOf(text: string, where: string): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new AppError("invalid_json", `${where}: is not valid JSON (${errorText(cause)})`, {
      cause,
    });
  }
  if (typeof value === "object" && value !== null && !Array.isArray(value)) {
    return value as Readonly<Record<string, unknown>>;
  }
  throw new AppError("invalid_json", `${where}: holds ${show(value)}; it must be a JSON object`);
}

/** Reads a list of token ids, 0 <= id <= max. @throws AppError invalid_field. */
export function tokensOf(
  value: unknown,
  place: { readonly where: string; readonly field: string },
  max: number,
): Int32Array {
  const { where, field } = place;
  if (!Array.isArray(value)) {
    throw new InvalidFieldError({ where, field, problem: must(value, "be an array of token ids") });
  }
  const tokens = new Int32Array(value.length);
  for (const [i, id] of (value as unknown[]).entries()) {
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id > max) {
      const problem = must(id, `be a whole number between 0 and ${max}`);
      throw new InvalidFieldError({ where, field: `${field}[${i}]`, problem });
    }
    tokens[i] = id;
  }
  return tokens;
}

export function must(value: unknown, bound: string): string {
  return value === undefined ? "is missing" : `is ${show(value)}; it must ${bound}`;
}

/** A value for a message: short, on one line, without control characters. */
export function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}
