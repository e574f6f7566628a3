// A second set of weights for the trainer's updates: the bundled model with its last norm scaled, which changes every
// logprob and nothing about the format.

import { cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { assert } from "../../../src/core/base/assert.ts";

/** Flatter than the original: responses differ soon. */
const SCALE = 0.8;

/**
 * Writes to `folder` the Hugging Face model at `from` with other weights. A safetensors file is the length of its header
 * (8 bytes, little-endian), the header (JSON) and the tensors, which are bfloat16 here: the upper half of a float32.
 */
export function writeOtherSafetensors(from: string, folder: string, scale = SCALE): void {
  mkdirSync(folder, { recursive: true });
  cpSync(from, folder, { recursive: true });
  const path = join(folder, "model.safetensors");
  const bytes = readFileSync(path);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const tensors = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(bytes.toString("utf8", 8, tensors));
  const { dtype, data_offsets: offsets } = header["model.norm.weight"];
  assert(dtype === "BF16", "the bundled model is bfloat16");
  const word = new DataView(new ArrayBuffer(4));
  for (let at = tensors + offsets[0]; at < tensors + offsets[1]; at += 2) {
    word.setUint32(0, view.getUint16(at, true) << 16);
    word.setFloat32(0, scale * word.getFloat32(0));
    view.setUint16(at, word.getUint32(0) >>> 16, true);
  }
  writeFileSync(path, bytes);
}
