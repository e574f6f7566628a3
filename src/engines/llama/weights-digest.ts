// The name of an engine's weights: their precision, and a digest of everything that determines what the model computes.
// Equal names mean equal weights, whichever file they came from; files that differ in one bit of these, or in precision,
// have different names.

import { closeSync, openSync } from "node:fs";
import { type WeightsId, weightsId } from "../../core/base/ids.ts";
import { readFully } from "./files.ts";
import { type GgufHead, type GgufTensor, readGgufHead } from "./gguf.ts";
import { openLibrary, ptrText } from "./native.ts";

/** On pieces of this size xxHash3 is as fast as memory. */
const PIECE_BYTES = 1 << 22;
/** Fields that only describe the file: of `general.*`, only the architecture determines what is computed. */
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
 * The name of the file's weights, such as `q8_0-0123456789abcdef`. The digest has 64 bits (xxHash3): it
 * detects mistakes, not forgeries. @throws AppError model_unreadable.
 */
export function weightsIdOf(options: DigestOptions): WeightsId {
  const { path, name, progress } = options;
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
