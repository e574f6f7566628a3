// Files of weights, as trainers write them and engines load them. The tensors are looked at in a child process of the
// engine (test/faults/attacks/model-files.test.ts); here it is their heads.

import fc from "fast-check";
import { openSafetensors, readTensor } from "../../../../src/engines/llama/checkpoint.ts";
import { anyJson } from "../json-text.ts";
import { type FuzzTarget, fileTarget, joined } from "../target.ts";
import { bytesInputs } from "../variations.ts";

const encoder = new TextEncoder();

function u64(value: number): Uint8Array {
  return new Uint8Array(BigUint64Array.of(BigInt(value)).buffer);
}

const count = fc.oneof(fc.nat({ max: 6 }), fc.constantFrom(2 ** 31, 2 ** 53 - 1, 2 ** 53, 1e300));
const entry = fc
  .record({
    dtype: fc.constantFrom("F32", "F16", "BF16", "I64", "", "__proto__"),
    shape: fc.array(count, { maxLength: 4 }),
    from: fc.nat({ max: 32 }),
    bytes: fc.oneof(fc.nat({ max: 32 }), count),
    isRight: fc.boolean(),
  })
  .map(({ dtype, shape, from, bytes, isRight }) => {
    const width = dtype === "F32" ? 4 : 2;
    const length = isRight ? shape.reduce((product, size) => product * size, width) : bytes;
    return JSON.stringify({ dtype, shape, data_offsets: [from, from + length] });
  });
const tensors = fc
  .array(
    fc.tuple(
      fc.constantFrom("a", "b", "__metadata__", "__proto__", ""),
      fc.oneof({ arbitrary: entry, weight: 12 }, { arbitrary: anyJson, weight: 1 }),
    ),
    { maxLength: 4 },
  )
  .map(
    (pairs) => `{${pairs.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(",")}}`,
  );
const safetensors = bytesInputs(
  tensors.map((text) => {
    const header = encoder.encode(text);
    return joined([u64(header.length), header, new Uint8Array(64).fill(0x3c)]);
  }),
);

function readCheckpoint(path: string, bytes: Uint8Array): void {
  for (const [name, tensor] of openSafetensors(path)) {
    if (tensor.offset + tensor.bytes > bytes.length)
      throw new Error(`${name} ends beyond the file`);
    if (["F32", "F16", "BF16"].includes(tensor.dtype)) readTensor(tensor);
  }
}

export const weightTargets: readonly FuzzTarget[] = [
  fileTarget("safetensors", safetensors, {
    codes: ["model_unreadable"],
    ending: ".safetensors",
    read: readCheckpoint,
  }),
];
