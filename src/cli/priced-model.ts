// The priced model: a GGUF model widened so that a decode step costs what a real model's step costs, the wait for the
// weights in memory, with the same output. In float32, which every CPU computes fast.
//
// The hidden and the feed-forward size are multiplied by a factor f, a power of four so that sqrt(f) is exact: matrices
// get zeros up to there, so every sum is the same. RMSNorm takes the mean over f times as many values, of which the new
// ones are zero: the norm's weights are divided by sqrt(f) and its epsilon by f. Attention keeps its heads: rows of one
// request share a GPU's reads of KV, and a CPU makes them anew for each.

import { closeSync, openSync, readFileSync } from "node:fs";
import { AppError } from "../core/base/errors.ts";
import { MemoryFile, writeFully } from "../engines/llama/files.ts";
import { GGML_TYPE, type GgufTensor, readGgufHead } from "../engines/llama/gguf.ts";

/** Value of --model that selects the priced model. */
export const PRICED = "priced";
/** Factor that widens the bundled model to 157 MB: more than a CPU's cache, and some ten milliseconds of memory reads. */
const FACTOR = 4;
const ALIGNMENT = 32;
const aligned = (bytes: number) => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
/** Weights per block of q8_0: a scale in f16, then a byte each. */
const Q8_BLOCK = 32;
const Q8_BLOCK_BYTES = 34;

/** Bytes of the type before a value of metadata. */
const TYPE_BYTES = 4;
/** Metadata that grows with the width, then the metadata that shrinks. */
const SIZES = ["embedding_length", "feed_forward_length"];
const EPSILON = "attention.layer_norm_rms_epsilon";

/** Writes the GGUF file `source` `factor` times as wide (1, 4, 16, ...) to `target`. Returns how many parameters it has. */
export function writePricedGguf(source: string, target: string, factor = FACTOR): number {
  const head = readGgufHead(source);
  const bytes = readFileSync(source);
  const tensors = head.tensors.map((tensor) => ({
    ...tensor,
    dimensions: wideShape(tensor, factor),
  }));
  const architecture = `${head.values.get("general.architecture")?.bytes}`;
  const front = frontOf(bytes, { architecture, tensors, factor });
  const file = openSync(target, "w");
  try {
    let at = 0;
    const write = (part: Uint8Array) => {
      writeFully(file, part, at);
      at = aligned(at + part.length);
    };
    write(front);
    let parameters = 0;
    for (const [i, tensor] of head.tensors.entries()) {
      const values = wider(valuesOf(tensor, bytes), tensor, tensors[i]?.dimensions ?? [], factor);
      parameters += values.length;
      write(new Uint8Array(values.buffer));
    }
    return parameters;
  } finally {
    closeSync(file);
  }
}

/** Tensors, with the dimensions (innermost first) that keep their size because they count heads or tokens. */
const KEPT: readonly [RegExp, readonly number[]][] = [
  [/\.attn_[qk]_norm\./, [0]],
  [/\.attn_output\./, [0]],
  [/\.attn_[qkv]\.|^token_embd\.|^output\.weight/, [1]],
];

function wideShape({ name, dimensions }: GgufTensor, factor: number): number[] {
  const kept = KEPT.find(([pattern]) => pattern.test(name))?.[1] ?? [];
  return dimensions.map((size, i) => (kept.includes(i) ? size : size * factor));
}

/** The tensor in the upper left corner of its wide form. */
function wider(
  values: Float32Array,
  { dimensions }: GgufTensor,
  wide: readonly number[],
  factor: number,
): Float32Array {
  if (wide[0] === dimensions[0] && wide[1] === dimensions[1]) return values;
  const [columns = 1, rows] = dimensions;
  const [wideColumns = 1, wideRows = 1] = wide;
  if (rows === undefined) {
    const norm = new Float32Array(wideColumns).fill(1);
    norm.set(values.map((value) => value / Math.sqrt(factor)));
    return norm;
  }
  const matrix = new Float32Array(wideRows * wideColumns);
  for (let row = 0; row < rows; row += 1)
    matrix.set(values.subarray(row * columns, (row + 1) * columns), row * wideColumns);
  return matrix;
}

function valuesOf({ name, type, offset, bytes }: GgufTensor, file: Buffer): Float32Array {
  const { buffer } = new Uint8Array(file.subarray(offset, offset + bytes));
  if (type === GGML_TYPE.f32) return new Float32Array(buffer);
  if (type === GGML_TYPE.f16) return new Float32Array(new Float16Array(buffer));
  if (type !== GGML_TYPE.q8_0) {
    const problem = `tensor ${name} is of ggml type ${type}, not f32, f16 or q8_0`;
    throw new AppError("model_unreadable", problem);
  }
  const blocks = new DataView(buffer);
  return Float32Array.from({ length: (bytes / Q8_BLOCK_BYTES) * Q8_BLOCK }, (_, i) => {
    const at = Math.floor(i / Q8_BLOCK) * Q8_BLOCK_BYTES;
    return blocks.getFloat16(at, true) * blocks.getInt8(at + 2 + (i % Q8_BLOCK));
  });
}

/** The bytes before the tensors' data (ggml-org/ggml, docs/gguf.md). */
function frontOf(
  file: Buffer,
  given: { architecture: string; tensors: readonly GgufTensor[]; factor: number },
): Uint8Array {
  const { architecture, tensors, factor } = given;
  // Its table of tensors follows the metadata.
  const metadata = Buffer.from(file.subarray(0, file.indexOf(textOf(tensors[0]?.name ?? ""))));
  const valueAt = (key: string) => {
    const name = textOf(`${architecture}.${key}`);
    const at = metadata.indexOf(name);
    if (at < 0) throw new AppError("model_unreadable", `the model has no ${architecture}.${key}`);
    return at + name.length + TYPE_BYTES;
  };
  for (const key of SIZES)
    metadata.writeUInt32LE(metadata.readUInt32LE(valueAt(key)) * factor, valueAt(key));
  metadata.writeFloatLE(metadata.readFloatLE(valueAt(EPSILON)) / factor, valueAt(EPSILON));
  const parts: Buffer[] = [metadata];
  let offset = 0;
  for (const { name, dimensions } of tensors) {
    const entry = Buffer.alloc(4 + 8 * dimensions.length + 4 + 8);
    let at = entry.writeUInt32LE(dimensions.length);
    for (const size of dimensions) at = entry.writeBigUInt64LE(BigInt(size), at);
    at = entry.writeUInt32LE(GGML_TYPE.f32, at);
    entry.writeBigUInt64LE(BigInt(offset), at);
    offset += aligned(dimensions.reduce((product, size) => product * size, 4));
    parts.push(textOf(name), entry);
  }
  const front = Buffer.concat(parts);
  return Buffer.concat([front, Buffer.alloc(aligned(front.length) - front.length)]);
}

/** A text of the head: its length and its bytes. */
function textOf(text: string): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, Buffer.from(text)]);
}

/** The priced model in a memory file, which `close` frees: a child process reads it. */
export function openPricedModel(source: string) {
  const file = MemoryFile.create();
  try {
    const millions = Math.round(writePricedGguf(source, file.path) / 1e6);
    return {
      path: `/proc/${process.pid}/fd/${file.descriptor}`,
      name: `the bundled model, widened to ${millions} M parameters in float32: the same text at a real model's price, a step waits for its weights`,
      close: () => file.close(),
    };
  } catch (error) {
    file.close();
    throw error;
  }
}
