// Reads the head of a GGUF file (ggml-org/ggml, docs/gguf.md) through libggml: its tensors with their types and offsets, and
// its metadata; and makes the name of its weights from these. A damaged file may end the process, so files from outside are
// read only after llama.cpp has loaded them in a child process.

import { type Pointer, ptr, toArrayBuffer } from "bun:ffi";
import { closeSync, openSync } from "node:fs";
import { type WeightsId, weightsId } from "../../core/base/ids.ts";
import { readFully, unreadable } from "./files.ts";
import { cString } from "./libc.ts";
import { type GgmlSymbols, openLibrary, pointerOf, ptrText } from "./native.ts";

/** Types that weights can be written in; the numbers are ggml's. */
export const GGML_TYPE = { f32: 0, f16: 1, q8_0: 8 } as const;

export interface GgufTensor {
  readonly name: string;
  /** Innermost first, without trailing ones: a matrix of `rows` rows is [columns, rows]. */
  readonly dimensions: readonly number[];
  readonly type: number;
  /** Offset of the tensor's data in the file. */
  readonly offset: number;
  readonly bytes: number;
}

/** A value of the metadata. In an array of strings, each ends with a zero. */
export interface GgufValue {
  readonly type: number;
  readonly bytes: Buffer;
}

export interface GgufHead {
  /** Offset of the first tensor's data. */
  readonly dataOffset: number;
  readonly tensors: readonly GgufTensor[];
  readonly values: ReadonlyMap<string, GgufValue>;
}

/** GGML_MAX_DIMS. */
const DIMENSIONS_MAX = 4;
/** Types of metadata values (gguf.h). */
const TEXT = 8;
const LIST = 9;
/** Size of a value by its type, bytes; 0: it varies. */
const VALUE_BYTES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

/** Reads a file's head. `name`: the file's name in errors. @throws AppError model_unreadable. */
export function readGgufHead(path: string, name = path): GgufHead {
  const { ggml } = openLibrary();
  // The struct {bool no_alloc; ggml_context** ctx} is passed in two registers.
  const gguf = pointerOf(ggml.gguf_init_from_file(ptr(cString(path)), 1, null));
  if (gguf === null) throw unreadable(name, "not a GGUF file, or damaged");
  try {
    const dataOffset = Number(ggml.gguf_get_data_offset(gguf));
    const tensors = indices(ggml.gguf_get_n_tensors(gguf)).map((i) => ({
      name: ptrText(ggml.gguf_get_tensor_name(gguf, i)),
      dimensions: dimensionsAt(ggml.gguf_get_tensor_ne(gguf, i)),
      type: ggml.gguf_get_tensor_type(gguf, i),
      offset: dataOffset + Number(ggml.gguf_get_tensor_offset(gguf, i)),
      bytes: Number(ggml.gguf_get_tensor_size(gguf, i)),
    }));
    const keys = indices(ggml.gguf_get_n_kv(gguf));
    const values = new Map(
      keys.map((i) => [ptrText(ggml.gguf_get_key(gguf, i)), readValue(ggml, gguf, i)]),
    );
    return { dataOffset, tensors, values };
  } finally {
    ggml.gguf_free(gguf);
  }
}

function indices(count: bigint): number[] {
  return Array.from({ length: Number(count) }, (_, i) => i);
}

function dimensionsAt(at: Pointer | bigint | null): number[] {
  const sizes = [...new BigInt64Array(bytesAt(at, DIMENSIONS_MAX * 8).buffer)].map(Number);
  return sizes.slice(0, Math.max(1, sizes.findLastIndex((size) => size !== 1) + 1));
}

function readValue(ggml: GgmlSymbols, gguf: Pointer, i: number): GgufValue {
  const type = ggml.gguf_get_kv_type(gguf, i);
  if (type === TEXT) return { type, bytes: Buffer.from(ptrText(ggml.gguf_get_val_str(gguf, i))) };
  if (type !== LIST) {
    return { type, bytes: bytesAt(ggml.gguf_get_val_data(gguf, i), VALUE_BYTES[type] ?? 0) };
  }
  const count = ggml.gguf_get_arr_n(gguf, i);
  const item = ggml.gguf_get_arr_type(gguf, i);
  if (item !== TEXT) {
    const bytes = Number(count) * (VALUE_BYTES[item] ?? 0);
    return { type, bytes: bytesAt(ggml.gguf_get_arr_data(gguf, i), bytes) };
  }
  const texts = indices(count).map((j) => `${ptrText(ggml.gguf_get_arr_str(gguf, i, j))}\0`);
  return { type, bytes: Buffer.from(texts.join("")) };
}

/** Copies memory of the library. */
function bytesAt(value: Pointer | bigint | null, bytes: number): Buffer<ArrayBuffer> {
  const at = pointerOf(value);
  if (at === null || bytes === 0) return Buffer.alloc(0);
  return Buffer.from(new Uint8Array(toArrayBuffer(at, 0, bytes)).slice().buffer);
}

/** On pieces of this size xxHash3 is as fast as memory. */
const PIECE_BYTES = 1 << 22;
/** Fields that only describe the file: of `general.*`, only the architecture determines what is computed. */
const DESCRIPTIVE = /^general\.(?!architecture$)/;

/**
 * The name of the weights in a file that llama.cpp has loaded, such as `q8_0-0123456789abcdef`: their precision, and a digest
 * of all that determines what the model computes. The digest has 64 bits (xxHash3): it detects mistakes, not forgeries.
 * `name`: the file's in errors. `progress`: called after each tensor. @throws AppError model_unreadable.
 */
export function weightsIdOf(path: string, name: string, progress: () => void): WeightsId {
  const head = readGgufHead(path, name);
  const file = openSync(path, "r");
  try {
    const buffer = new Uint8Array(PIECE_BYTES);
    const metadata = [...head.values]
      .filter(([key]) => !DESCRIPTIVE.test(key))
      .map(([key, { type, bytes }]) => `${key} ${type} ${Bun.hash.xxHash3(bytes).toString(16)}`);
    const digestOf = ({ offset, bytes }: GgufTensor) => {
      let hash = 0n;
      for (let at = 0; at < bytes; at += buffer.length) {
        const part = buffer.subarray(0, bytes - at);
        readFully(file, part, offset + at, name);
        hash = Bun.hash.xxHash3(part, hash);
      }
      progress();
      return hash.toString(16);
    };
    const tensors = head.tensors.map(
      (tensor) =>
        `${tensor.name} ${tensor.type} ${tensor.dimensions.join("x")} ${digestOf(tensor)}`,
    );
    // The order in which a file holds them means nothing.
    const lines = [...metadata.sort(), ...tensors.sort()].join("\n");
    const hex = Bun.hash.xxHash3(lines).toString(16).padStart(16, "0");
    return weightsId(`${precisionOf(head)}-${hex}`);
  } finally {
    closeSync(file);
  }
}

/** The type of most of the file's bytes. */
function precisionOf({ tensors }: GgufHead): string {
  const sums = new Map<number, number>();
  for (const { type, bytes } of tensors) sums.set(type, (sums.get(type) ?? 0) + bytes);
  const [most] = [...sums].sort(([a, x], [b, y]) => y - x || a - b);
  return most === undefined ? "none" : ptrText(openLibrary().ggml.ggml_type_name(most[0]));
}
