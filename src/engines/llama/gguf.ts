// Reads the head of a GGUF file (version 2 or 3: ggml-org/ggml, docs/gguf.md): which tensors it holds, of what
// type and where, and the values of its metadata that a conversion or a digest needs. It never reads the tensors.

import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";

/** Types that weights can be written in; the numbers are ggml's. */
export const GGML_TYPE = { f32: 0, f16: 1, q8_0: 8, bf16: 30 } as const;
/** Weights per block of q8_0: a scale in f16, then a byte each. */
export const Q8_BLOCK = 32;
export const Q8_BLOCK_BYTES = 34;

export interface GgufTensor {
  readonly name: string;
  /** Innermost first: a matrix of `rows` rows is [columns, rows]. */
  readonly dimensions: readonly number[];
  readonly type: number;
  /** Offset of the tensor's data, from the start of the file. */
  readonly offset: number;
}

/** Bytes of the file: `from` inclusive, `to` exclusive. */
export interface ByteRange {
  readonly from: number;
  readonly to: number;
}

export interface GgufHead {
  readonly path: string;
  readonly fileBytes: number;
  /** Offset of the tensors' data. */
  readonly dataOffset: number;
  readonly tensors: readonly GgufTensor[];
  /** Numbers, booleans and strings of the metadata; no arrays. */
  readonly values: ReadonlyMap<string, string | number | boolean>;
  /** Offset of each metadata value, arrays included, from its type on. */
  readonly ranges: ReadonlyMap<string, ByteRange>;
}

export const GGUF_MAGIC = 0x46554747;
/** GGML_MAX_DIMS. */
const DIMENSIONS_MAX = 4;
const ALIGNMENT_DEFAULT = 32;
/** A page of the file system, far more than files use. */
const ALIGNMENT_MAX = 1 << 16;
const FIRST_READ_BYTES = 1 << 20;
/** Heads grow with the vocabulary: 150,000 tokens take about 6 MB. */
const HEAD_BYTES_MAX = 1 << 28;

/** `name`: what errors call the file. @throws AppError model_unreadable. */
export function readGgufHead(path: string, name = path): GgufHead {
  const unreadable = (problem: string, cause?: unknown): AppError =>
    new AppError("model_unreadable", `${name}: ${problem}`, { cause });
  let file: number;
  try {
    file = openSync(path, "r");
  } catch (cause) {
    throw unreadable(cause instanceof Error ? cause.message : String(cause), cause);
  }
  try {
    const fileBytes = fstatSync(file).size;
    const limit = Math.min(fileBytes, HEAD_BYTES_MAX);
    for (let bytes = Math.min(limit, FIRST_READ_BYTES); ; bytes = Math.min(limit, bytes * 4)) {
      const buffer = new Uint8Array(bytes);
      const read = readSync(file, buffer, 0, bytes, 0);
      try {
        const head = { path, fileBytes, ...parseHead(new HeadReader(buffer.subarray(0, read))) };
        checkOffsets(head);
        return head;
      } catch (error) {
        if (!(error instanceof RangeError)) throw unreadable(String(error), error);
        if (bytes >= limit) throw unreadable("its head is cut short", error);
      }
    }
  } finally {
    closeSync(file);
  }
}

/** Throws RangeError where the bytes end too soon. */
class HeadReader {
  readonly #view: DataView;
  readonly #bytes: Uint8Array;
  at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  u32(): number {
    this.at += 4;
    return this.#view.getUint32(this.at - 4, true);
  }

  u64(): number {
    this.at += 8;
    return Number(this.#view.getBigUint64(this.at - 8, true));
  }

  string(): string {
    const length = this.u64();
    const from = this.at;
    this.skip(length);
    return new TextDecoder().decode(this.#bytes.subarray(from, this.at));
  }

  skip(bytes: number): void {
    if (!(bytes >= 0 && this.at + bytes <= this.#bytes.length)) throw new RangeError("cut short");
    this.at += bytes;
  }

  /** A number or boolean of the type. */
  scalar(type: number): number | boolean {
    const [bytes, read] = scalarType(type);
    const from = this.at;
    this.skip(bytes);
    const value = Number(this.#view[read](from, true));
    return type === BOOL ? value !== 0 : value;
  }
}

const BOOL = 7;
const STRING = 8;
const ARRAY = 9;

/** Bytes and reader of each scalar type. */
const SCALARS = {
  0: [1, "getUint8"],
  1: [1, "getInt8"],
  2: [2, "getUint16"],
  3: [2, "getInt16"],
  4: [4, "getUint32"],
  5: [4, "getInt32"],
  6: [4, "getFloat32"],
  [BOOL]: [1, "getUint8"],
  10: [8, "getBigUint64"],
  11: [8, "getBigInt64"],
  12: [8, "getFloat64"],
} as const;

function scalarType(type: number) {
  if (type in SCALARS) return SCALARS[type as keyof typeof SCALARS];
  throw new Error(`unknown type ${type} in its metadata`);
}

function parseHead(reader: HeadReader): Omit<GgufHead, "path" | "fileBytes"> {
  if (reader.u32() !== GGUF_MAGIC) throw new Error("not a GGUF file");
  const version = reader.u32();
  if (version !== 2 && version !== 3) throw new Error(`GGUF version ${version} is not supported`);
  const tensorCount = reader.u64();
  const valueCount = reader.u64();
  const values = new Map<string, string | number | boolean>();
  const ranges = new Map<string, ByteRange>();
  for (let i = 0; i < valueCount; i += 1) {
    const key = reader.string();
    const from = reader.at;
    const type = reader.u32();
    if (type === STRING) values.set(key, reader.string());
    else if (type === ARRAY) skipArray(reader);
    else values.set(key, reader.scalar(type));
    ranges.set(key, { from, to: reader.at });
  }
  const heads: GgufTensor[] = [];
  for (let i = 0; i < tensorCount; i += 1) {
    const name = reader.string();
    const dimensionCount = reader.u32();
    if (dimensionCount > DIMENSIONS_MAX) {
      throw new Error(`tensor ${name} has ${dimensionCount} dimensions, at most ${DIMENSIONS_MAX}`);
    }
    const dimensions = Array.from({ length: dimensionCount }, () => reader.u64());
    heads.push({ name, dimensions, type: reader.u32(), offset: reader.u64() });
  }
  const alignment = values.get("general.alignment") ?? ALIGNMENT_DEFAULT;
  const isWhole = typeof alignment === "number" && Number.isInteger(alignment);
  if (!isWhole || alignment < 1 || alignment > ALIGNMENT_MAX) {
    throw new Error(`its alignment is ${alignment}, not a whole number from 1 to ${ALIGNMENT_MAX}`);
  }
  const dataOffset = Math.ceil(reader.at / alignment) * alignment;
  const tensors = heads.map((one) => ({ ...one, offset: dataOffset + one.offset }));
  return { dataOffset, tensors, values, ranges };
}

/** @throws Error: a tensor is not in the file. */
function checkOffsets({ tensors, fileBytes }: GgufHead): void {
  const outside = tensors.find(({ offset }) => !(offset <= fileBytes));
  if (outside === undefined) return;
  const { name, offset } = outside;
  throw new Error(`tensor ${name} begins at byte ${offset}, and the file has ${fileBytes}`);
}

function skipArray(reader: HeadReader): void {
  const type = reader.u32();
  const count = reader.u64();
  if (type === ARRAY) {
    for (let i = 0; i < count; i += 1) skipArray(reader);
  } else if (type === STRING) {
    for (let i = 0; i < count; i += 1) reader.skip(reader.u64());
  } else {
    reader.skip(count * scalarType(type)[0]);
  }
}
