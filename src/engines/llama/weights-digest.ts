// The name of an engine's weights: their precision and a digest of everything that decides what the model computes.
// Equal names mean equal weights, whatever file they came from; two files of a model that differ in one bit, or in
// precision, have different names.

import { closeSync, openSync, readSync } from "node:fs";
import { assert } from "../../core/base/assert.ts";
import { type WeightsId, weightsId } from "../../core/base/ids.ts";
import { type ByteRange, type GgufHead, type GgufTensor, readGgufHead } from "./gguf.ts";
import { openLibrary, ptrText } from "./native.ts";

/** xxHash3 runs at memory's speed on pieces of this size. */
const PIECE_BYTES = 1 << 22;
/** Fields about the origin of the file; of `general.*` only the architecture decides what is computed. */
const DESCRIPTIVE = /^general\.(?!architecture$)/;

export interface DigestOptions {
  /** A GGUF file that llama.cpp has loaded. */
  readonly path: string;
  /** Name of the file in errors. */
  readonly name: string;
  /** Called after each tensor. */
  readonly progress: () => void;
}

/**
 * The name of the file's weights, such as `q8_0-0123456789abcdef`. The digest is of 64 bits (xxHash3): it is
 * there for mistakes, not for forgers. @throws AppError model_unreadable.
 */
export function weightsIdOf(options: DigestOptions): WeightsId {
  const { path, name, progress } = options;
  const head = readGgufHead(path, name);
  const file = openSync(path, "r");
  try {
    const buffer = new Uint8Array(PIECE_BYTES);
    const digest = (range: ByteRange) => digestRange(file, range, buffer);
    const metadata = [...head.ranges]
      .filter(([key]) => !DESCRIPTIVE.test(key))
      .map(([key, range]) => `${key} ${digest(range)}`);
    const tensors = head.tensors.map(({ name, type, dimensions, offset }) => {
      const range = { from: offset, to: offset + tensorBytes({ type, dimensions }) };
      const line = `${name} ${type} ${dimensions.join("x")} ${digest(range)}`;
      progress();
      return line;
    });
    // The order in which a file holds them means nothing.
    const lines = [...metadata.sort(), ...tensors.sort()].join("\n");
    const hex = Bun.hash.xxHash3(lines).toString(16).padStart(16, "0");
    return weightsId(`${precisionOf(head)}-${hex}`);
  } finally {
    closeSync(file);
  }
}

function digestRange(file: number, { from, to }: ByteRange, buffer: Uint8Array): string {
  let hash = 0n;
  for (let at = from; at < to; ) {
    const wanted = Math.min(buffer.length, to - at);
    let filled = 0;
    while (filled < wanted) {
      const read = readSync(file, buffer, filled, wanted - filled, at + filled);
      assert(read > 0, "llama.cpp loads no file whose tensors end beyond it");
      filled += read;
    }
    hash = Bun.hash.xxHash3(buffer.subarray(0, wanted), hash);
    at += wanted;
  }
  return hash.toString(16);
}

/** Bytes of a tensor's data. */
export function tensorBytes({ type, dimensions }: Pick<GgufTensor, "type" | "dimensions">): number {
  const { ggml } = openLibrary();
  const count = dimensions.reduce((product, size) => product * size, 1);
  return (count / Number(ggml.ggml_blck_size(type))) * Number(ggml.ggml_type_size(type));
}

/** The type that most bytes are of. */
function precisionOf({ tensors }: GgufHead): string {
  const bytes = new Map<number, number>();
  for (const tensor of tensors) {
    bytes.set(tensor.type, (bytes.get(tensor.type) ?? 0) + tensorBytes(tensor));
  }
  const [most] = [...bytes].sort(([a, x], [b, y]) => y - x || a - b);
  return most === undefined ? "none" : ptrText(openLibrary().ggml.ggml_type_name(most[0]));
}
