// Reads the head of a GGUF file (ggml-org/ggml, docs/gguf.md) through libggml: its tensors with their types and offsets, and
// its metadata. A damaged file may end the process, so files from outside are read only after llama.cpp has loaded them in a
// child process.

import { type Pointer, ptr, toArrayBuffer } from "bun:ffi";
import { cString } from "./c-bytes.ts";
import { unreadable } from "./files.ts";
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
