// Files of weights, as trainers write them and engines load them. The tensors are looked at in a child process of the
// engine (test/faults/attacks/model-files.test.ts); here it is their heads.

import fc from "fast-check";
import { readGgufHead } from "../../../../src/engines/llama/gguf.ts";
import { openSafetensors, readTensor } from "../../../../src/engines/llama/safetensors.ts";
import { fileTarget, joined } from "../file-target.ts";
import { anyJson } from "../json-text.ts";
import type { FuzzTarget } from "../target.ts";
import { bytesInputs } from "../variations.ts";

const encoder = new TextEncoder();

function u32(value: number): Uint8Array {
  return new Uint8Array(Uint32Array.of(value).buffer);
}

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
    if (["F32", "F16", "BF16"].includes(tensor.dtype)) readTensor(name, tensor);
  }
}

const ggufText = (text: string) => {
  const bytes = encoder.encode(text);
  return joined([u64(bytes.length), bytes]);
};
const SCALARS: readonly (readonly [number, number])[] = [
  ...[
    [0, 1],
    [1, 1],
    [2, 2],
    [3, 2],
    [4, 4],
    [5, 4],
    [6, 4],
    [7, 1],
    [10, 8],
    [11, 8],
    [12, 8],
  ],
] as const as readonly (readonly [number, number])[];
const scalar = fc
  .tuple(fc.constantFrom(...SCALARS), fc.uint8Array({ minLength: 8, maxLength: 8 }))
  .map(([[type, width], bytes]) => joined([u32(type), bytes.subarray(0, width)]));
const list = fc
  .tuple(fc.constantFrom(...SCALARS), fc.nat({ max: 4 }))
  .map(([[type, width], length]) =>
    joined([u32(9), u32(type), u64(length), new Uint8Array(length * width)]),
  );
const texts = fc
  .array(fc.constantFrom("a", "", "é"), { maxLength: 3 })
  .map((all) => joined([u32(9), u32(8), u64(all.length), ...all.map(ggufText)]));
const nested = fc.nat({ max: 4 }).map((depth) => {
  const inner = joined([u32(0), u64(0)]);
  const layers = Array.from({ length: depth }, () => joined([u32(9), u64(1)]));
  return joined([u32(9), ...layers, inner]);
});
const value = fc
  .tuple(
    fc.constantFrom("general.alignment", "general.architecture", "k", ""),
    fc.oneof(
      scalar,
      list,
      texts,
      nested,
      fc.constantFrom("llama", "").map((text) => joined([u32(8), ggufText(text)])),
      fc.constantFrom(0, 1, 32, 0xffffffff).map((number) => joined([u32(4), u32(number)])),
    ),
  )
  .map(([key, bytes]) => joined([ggufText(key), bytes]));
const ggufTensor = fc
  .tuple(fc.constantFrom("w", ""), fc.array(count, { maxLength: 5 }), fc.nat({ max: 40 }), count)
  .map(([name, dimensions, type, offset]) =>
    joined([
      ggufText(name),
      u32(dimensions.length),
      ...dimensions.map((size) => u64(Math.min(size, 2 ** 53))),
      u32(type),
      u64(Math.min(offset, 2 ** 53)),
    ]),
  );
const gguf = bytesInputs(
  fc
    .tuple(
      fc.constantFrom(1, 2, 3, 4),
      fc.array(value, { maxLength: 5 }),
      fc.array(ggufTensor, { maxLength: 3 }),
    )
    .map(([version, values, heads]) =>
      joined([
        encoder.encode("GGUF"),
        u32(version),
        u64(heads.length),
        u64(values.length),
        ...values,
        ...heads,
        new Uint8Array(64),
      ]),
    ),
);

function readModel(path: string): void {
  const { dataOffset, tensors: heads } = readGgufHead(path);
  const places = [dataOffset, ...heads.map(({ offset }) => offset)];
  const wrong = places.find((place) => !Number.isSafeInteger(place) || place < 0);
  if (wrong !== undefined) throw new Error(`an offset is ${wrong}`);
}

const UNREADABLE = { codes: ["model_unreadable"] } as const;

export const weightTargets: readonly FuzzTarget[] = [
  fileTarget("safetensors", safetensors, {
    ...UNREADABLE,
    ending: ".safetensors",
    read: readCheckpoint,
  }),
  fileTarget("gguf", gguf, { ...UNREADABLE, ending: ".gguf", read: readModel }),
];
