// Reads tensors from safetensors files (huggingface/safetensors): one file, or a folder with `model.safetensors`
// or with shards and their index. It checks every header and reads one tensor at a time; it does not interpret
// the tensors.

import { closeSync, existsSync, fstatSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { AppError } from "../../core/base/errors.ts";
import { openToRead, readFully, unreadable } from "./files.ts";

const SINGLE_FILE = "model.safetensors";
const INDEX_FILE = "model.safetensors.index.json";
/** The format's own limit. */
const HEADER_BYTES_MAX = 100_000_000;
const ELEMENT_BYTES: Readonly<Record<string, number>> = { F32: 4, F16: 2, BF16: 2 };

export interface SafeTensor {
  readonly dtype: string;
  /** Outermost first. */
  readonly shape: readonly number[];
  readonly file: string;
  readonly offset: number;
  readonly bytes: number;
}

/** The tensors by name. @throws AppError model_unreadable, which names the file, and the tensor if one is wrong. */
export function openSafetensors(path: string): Map<string, SafeTensor> {
  if (path.endsWith(".safetensors")) return readHeader(path);
  const single = join(path, SINGLE_FILE);
  if (existsSync(single)) return readHeader(single);
  const index = join(path, INDEX_FILE);
  if (!existsSync(index)) {
    throw unreadable(path, `holds neither ${SINGLE_FILE} nor ${INDEX_FILE}`);
  }
  return readShards(index);
}

/** Reads a tensor as float32. @throws AppError model_unreadable: its dtype is unknown, or the file became shorter. */
export function readTensor(name: string, tensor: SafeTensor): Float32Array<ArrayBuffer> {
  if (ELEMENT_BYTES[tensor.dtype] === undefined) {
    const known = Object.keys(ELEMENT_BYTES).join(", ");
    throw unreadable(
      tensor.file,
      `tensor ${name} is of dtype ${tensor.dtype}, not one of ${known}`,
    );
  }
  const buffer = new ArrayBuffer(tensor.bytes);
  const file = openToRead(tensor.file);
  try {
    readFully(file, new Uint8Array(buffer), tensor.offset, tensor.file);
  } finally {
    closeSync(file);
  }
  if (tensor.dtype === "F32") return new Float32Array(buffer);
  if (tensor.dtype === "F16") return new Float32Array(new Float16Array(buffer));
  const halves = new Uint16Array(buffer);
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i += 1) words[i] = (halves[i] as number) << 16;
  return new Float32Array(words.buffer);
}

function readHeader(path: string): Map<string, SafeTensor> {
  const file = openToRead(path);
  try {
    const fileBytes = fstatSync(file).size;
    const head = new DataView(new ArrayBuffer(8));
    readFully(file, new Uint8Array(head.buffer), 0, path);
    const length = Number(head.getBigUint64(0, true));
    if (length > HEADER_BYTES_MAX || 8 + length > fileBytes) {
      throw unreadable(path, "is no safetensors file, or cut short");
    }
    const json = new Uint8Array(length);
    readFully(file, json, 8, path);
    const header = parseObject(new TextDecoder().decode(json), path);
    const tensors = new Map<string, SafeTensor>();
    for (const [name, entry] of Object.entries(header)) {
      if (name === "__metadata__") continue;
      tensors.set(name, readEntry(name, entry, { path, dataOffset: 8 + length, fileBytes }));
    }
    return tensors;
  } finally {
    closeSync(file);
  }
}

function readEntry(
  name: string,
  entry: unknown,
  file: { path: string; dataOffset: number; fileBytes: number },
): SafeTensor {
  const { dtype, shape, data_offsets: range } = Object(entry) as Record<string, unknown>;
  const isSize = (value: unknown): value is number =>
    Number.isSafeInteger(value) && Number(value) >= 0;
  const wrong = (problem: string): AppError => unreadable(file.path, `tensor ${name} ${problem}`);
  if (typeof dtype !== "string") throw wrong("has no dtype");
  if (!Array.isArray(shape) || !shape.every(isSize)) throw wrong("has no shape");
  if (!Array.isArray(range) || !range.every(isSize)) throw wrong("has no data_offsets");
  const [from = 0, to = 0] = range as number[];
  if (to < from || file.dataOffset + to > file.fileBytes) throw wrong("ends beyond the file");
  const count = (shape as number[]).reduce((product, size) => product * size, 1);
  const size = ELEMENT_BYTES[dtype];
  if (size !== undefined && to - from !== count * size) {
    throw wrong(`takes ${to - from} bytes, its shape ${count * size}`);
  }
  return { dtype, shape, file: file.path, offset: file.dataOffset + from, bytes: to - from };
}

function readShards(index: string): Map<string, SafeTensor> {
  const { weight_map: weightMap } = parseObject(readFileSync(index, "utf8"), index);
  const tensors = new Map<string, SafeTensor>();
  for (const shard of new Set(Object.values(Object(weightMap)))) {
    if (typeof shard !== "string" || shard !== shard.split(/[\\/]/).at(-1)) {
      throw unreadable(index, `names ${shard}, which is no file of this folder`);
    }
    for (const [name, tensor] of readHeader(join(dirname(index), shard))) tensors.set(name, tensor);
  }
  if (tensors.size === 0) throw unreadable(index, "names no tensors");
  return tensors;
}

function parseObject(text: string, path: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch (cause) {
    throw unreadable(path, "its header is no JSON", cause);
  }
  throw unreadable(path, "its header is no JSON object");
}
