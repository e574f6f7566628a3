// Writes Hugging Face checkpoints of the bundled model for tests.

import { readFileSync, writeFileSync } from "node:fs";
import { checkpointName } from "../../src/engines/llama/checkpoint.ts";
import { GGML_TYPE, readGgufHead } from "../../src/engines/llama/gguf.ts";
import { OTHER_MODEL_PATH } from "./engine-fixture.ts";

export interface Weights {
  readonly shape: number[];
  readonly values: Float32Array;
}

/** Offset of a value of the metadata in a GGUF file, behind its type. */
export function valueAt(file: Buffer, key: string): number {
  return file.indexOf(key) + key.length + 4;
}

export type Dtype = "F32" | "F16" | "BF16" | "I32";

/** A safetensors file, by its format description. */
export function writeSafetensors(path: string, tensors: Map<string, Weights>, dtype: Dtype): void {
  const header: Record<string, unknown> = { __metadata__: { format: "pt" } };
  const parts: Uint8Array[] = [];
  let at = 0;
  for (const [name, { shape, values }] of tensors) {
    const bytes = encoded(values, dtype);
    header[name] = { dtype, shape, data_offsets: [at, at + bytes.length] };
    parts.push(bytes);
    at += bytes.length;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(json.length), true);
  writeFileSync(path, Buffer.concat([new Uint8Array(length.buffer), json, ...parts]));
}

function encoded(values: Float32Array, dtype: Dtype): Uint8Array {
  if (dtype === "F16") return new Uint8Array(new Float16Array(values).buffer);
  const words = new Uint32Array(values.slice().buffer);
  if (dtype !== "BF16") return new Uint8Array(words.buffer);
  return new Uint8Array(Uint16Array.from(words, (word) => word >>> 16).buffer);
}

/** The f16 model's tensors under their names in a checkpoint. */
export function checkpoint(): Map<string, Weights> {
  const head = readGgufHead(OTHER_MODEL_PATH);
  const { buffer } = new Uint8Array(readFileSync(OTHER_MODEL_PATH));
  const tensors = new Map<string, Weights>();
  for (const { name, dimensions, type, offset } of head.tensors) {
    const count = dimensions.reduce((product, size) => product * size, 1);
    const values =
      type === GGML_TYPE.f16
        ? new Float32Array(new Float16Array(buffer, offset, count))
        : new Float32Array(buffer, offset, count);
    tensors.set(checkpointName(name) ?? name, { shape: dimensions.toReversed(), values });
  }
  return tensors;
}
