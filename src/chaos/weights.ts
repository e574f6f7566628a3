// A second set of weights for the trainer's updates: the bundled model with its last norm scaled, which changes every
// logprob and nothing about the format.

import { readFileSync, writeFileSync } from "node:fs";
import { assert } from "../base/assert.ts";
import { GGML_TYPE, readGgufHead } from "../worker/llama/gguf.ts";

const TENSOR = "output_norm.weight";
/** Flatter than the original: responses differ soon. */
const SCALE = 0.8;

/** Writes to `path` the model at `from` with other weights. */
export function writeOtherWeights(from: string, path: string): void {
  const tensor = readGgufHead(from).tensors.find(({ name }) => name === TENSOR);
  assert(tensor?.type === GGML_TYPE.f32, `the bundled model has ${TENSOR} in f32`);
  const bytes = readFileSync(from);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let i = 0; i < (tensor.dimensions[0] ?? 0); i += 1) {
    const at = tensor.offset + 4 * i;
    view.setFloat32(at, SCALE * view.getFloat32(at, true), true);
  }
  writeFileSync(path, bytes);
}
