// Checkpoints made from the bundled model's own GGUF must become that file again, byte for byte; quantised
// weights must be those of ggml; and whatever does not fit is refused by name.

import { dlopen, ptr } from "bun:ffi";
import { describe, expect, test } from "bun:test";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  checkpoint,
  type Dtype,
  type Weights,
  writeSafetensors,
} from "../../../test/llama/checkpoint.ts";
import { MODEL_PATH, OTHER_MODEL_PATH, skipReason } from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { checkpointName, convertWeights } from "./checkpoint.ts";
import { GGML_TYPE, type GgufTensor, readGgufHead } from "./gguf.ts";
import { locateLibrary } from "./platform.ts";

const folder = temporaryFolder("conversion");

const target = join(folder, "target.gguf");

function convert(source: string, base = OTHER_MODEL_PATH): Buffer {
  convertWeights({ base, source, target });
  return readFileSync(target);
}

describe("convertWeights", () => {
  const original = readFileSync(OTHER_MODEL_PATH);

  test("a checkpoint of the same values becomes the base file, byte for byte: one file or a folder", () => {
    const whole = join(folder, "whole");
    mkdirSync(whole);
    writeSafetensors(join(whole, "model.safetensors"), checkpoint(), "F32");
    expect(convert(whole).equals(original)).toBe(true);
    expect(convert(join(whole, "model.safetensors")).equals(original)).toBe(true);
  });

  test("shards with an index are one checkpoint", () => {
    const sharded = join(folder, "sharded");
    mkdirSync(sharded);
    const all = [...checkpoint()];
    const weightMap: Record<string, string> = {};
    for (const part of [0, 1, 2]) {
      const file = `model-${part}.safetensors`;
      const mine = all.filter((_, i) => i % 3 === part);
      for (const [name] of mine) weightMap[name] = file;
      writeSafetensors(join(sharded, file), new Map(mine), "F32");
    }
    const index = join(sharded, "model.safetensors.index.json");
    writeFileSync(index, JSON.stringify({ weight_map: weightMap }));
    expect(convert(sharded).equals(original)).toBe(true);
    writeFileSync(
      index,
      JSON.stringify({ weight_map: { ...weightMap, x: "../../worker/model-0.safetensors" } }),
    );
    expect(() => convert(sharded)).toThrow("which is no file of this folder");
  });

  test("bf16 and f16 are read exactly, output in both widths", () => {
    for (const dtype of ["BF16", "F16"] as const) {
      const tensors = checkpoint();
      // Values that both narrow types hold exactly.
      for (const { values } of tensors.values())
        for (let i = 0; i < values.length; i += 1) values[i] = (i % 97) / 64;
      const path = join(folder, `${dtype}.safetensors`);
      writeSafetensors(path, tensors, dtype);
      const bytes = new Uint8Array(convert(path));
      for (const { type, offset } of readGgufHead(target).tensors) {
        const isWide = type === GGML_TYPE.f32;
        const read = isWide
          ? new Float32Array(bytes.buffer, offset, 60)
          : new Float16Array(bytes.buffer, offset, 60);
        expect([...read]).toEqual(Array.from({ length: 60 }, (_, i) => i / 64));
      }
    }
  });

  test("what is missing, superfluous, of another shape or type, or cut short is named", () => {
    const name = "model.layers.2.mlp.up_proj.weight";
    const refuse = (
      change: (tensors: Map<string, Weights>) => void,
      dtype: Dtype = "F32",
    ): string => {
      const tensors = checkpoint();
      change(tensors);
      const path = join(folder, "wrong.safetensors");
      writeSafetensors(path, tensors, dtype);
      try {
        convert(path);
      } catch (error) {
        expect(error).toMatchObject({ code: "model_unreadable" });
        return String(error);
      }
      return "converted";
    };
    const one = { shape: [1], values: new Float32Array(1) };
    expect(refuse((all) => all.delete(name))).toContain(`tensor ${name} is missing`);
    expect(refuse((all) => all.set("model.visual.weight", one))).toContain(
      "model.visual.weight has no place",
    );
    expect(refuse((all) => all.set(name, one))).toContain(`tensor ${name} is of shape [1]`);
    expect(refuse(() => {}, "I32")).toContain("is of dtype I32");
    const embeddings = (all: Map<string, Weights>) => all.get("model.embed_tokens.weight") ?? one;
    expect(refuse((all) => all.set("lm_head.weight", embeddings(all)))).toBe("converted");
    const untied = (all: Map<string, Weights>): Weights => {
      const { shape, values } = embeddings(all);
      return { shape, values: values.map((value) => -value) };
    };
    expect(refuse((all) => all.set("lm_head.weight", untied(all)))).toContain(
      "lm_head.weight has no place",
    );
    const path = join(folder, "cut.safetensors");
    writeSafetensors(path, checkpoint(), "F32");
    const whole = readFileSync(path);
    for (const bytes of [0, 5, 8, 100, whole.length - 1]) {
      writeFileSync(path, whole.subarray(0, bytes));
      expect(() => convert(path)).toThrow(path);
    }
    expect(() => convert(join(folder, "absent.safetensors"))).toThrow("absent.safetensors");
  });

  test("llama: the rows of q and k are interleaved, those of v are not; a missing output is the embeddings", () => {
    const base = join(folder, "llama.gguf");
    const matrix = (name: string, rows: number): Written => {
      return { name, dimensions: [2, rows], type: GGML_TYPE.f32 };
    };
    writeLlama(base, [
      matrix("token_embd.weight", 5),
      matrix("output.weight", 5),
      matrix("blk.0.attn_q.weight", 16),
      matrix("blk.0.attn_k.weight", 8),
      matrix("blk.0.attn_v.weight", 8),
    ]);
    const rows = (count: number): Weights => {
      return {
        shape: [count, 2],
        values: Float32Array.from({ length: count * 2 }, (_, i) => i >> 1),
      };
    };
    const source = join(folder, "llama.safetensors");
    const attention = "model.layers.0.self_attn";
    const tensors = new Map([
      ["model.embed_tokens.weight", rows(5)],
      [`${attention}.q_proj.weight`, rows(16)],
      [`${attention}.k_proj.weight`, rows(8)],
      [`${attention}.v_proj.weight`, rows(8)],
      ["model.layers.0.self_attn.rotary_emb.inv_freq", rows(1)],
    ]);
    writeSafetensors(source, tensors, "F32");
    const { buffer } = new Uint8Array(convert(source, base));
    const [embeddings, output, q, k, v] = readGgufHead(target).tensors.map(
      ({ dimensions, offset }) => {
        const values = new Float32Array(buffer, offset, (dimensions[1] ?? 0) * 2);
        return [...values].filter((_, i) => i % 2 === 0);
      },
    );
    expect(embeddings).toEqual([0, 1, 2, 3, 4]);
    expect(output).toEqual(embeddings);
    // Four heads of q and two of k, each of 4 rows: reshape(heads, 2, 2).swapaxes(1, 2).
    expect(q).toEqual([0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]);
    expect(k).toEqual([0, 2, 1, 3, 4, 6, 5, 7]);
    expect(v).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });
});

describe.skipIf(skipReason !== null)("q8_0", () => {
  test("a base of q8_0 gets the bytes that ggml's own quantisation writes", () => {
    const library = dlopen(join(locateLibrary().folder, "libggml-base.so"), {
      quantize_row_q8_0_ref: { args: ["ptr", "ptr", "i64"], returns: "void" },
    });
    const tensors = checkpoint();
    // A block of zeros, and one whose values fall half between two steps.
    const embeddings = tensors.get("model.embed_tokens.weight")?.values ?? new Float32Array(64);
    embeddings.fill(0, 0, 32);
    for (let i = 0; i < 32; i += 1) embeddings[32 + i] = i === 0 ? 127 : (i - 16) / 2;
    const source = join(folder, "q8.safetensors");
    writeSafetensors(source, tensors, "F32");
    const bytes = convert(source, MODEL_PATH);
    let checked = 0;
    for (const { name, type, offset } of readGgufHead(MODEL_PATH).tensors) {
      if (type !== GGML_TYPE.q8_0) continue;
      const { values } = tensors.get(checkpointName(name) ?? "") ?? { values: new Float32Array(0) };
      const expected = new Uint8Array(new ArrayBuffer((values.length / 32) * 34));
      const input = new Float32Array(values);
      library.symbols.quantize_row_q8_0_ref(ptr(input), ptr(expected), BigInt(values.length));
      expect(bytes.subarray(offset, offset + expected.length).equals(expected)).toBe(true);
      checked += 1;
    }
    expect(checked).toBe(29);
    library.close();
  });
});

describe.skipIf(skipReason !== null)("other types", () => {
  test("a base of q4_0 gets blocks of q4_0; iq2_xxs, which needs calibration data, is refused by name", () => {
    const source = join(folder, "other.safetensors");
    const values = Float32Array.from({ length: 256 }, (_, i) => Math.sin(i));
    const embeddings = { shape: [1, 256], values };
    writeSafetensors(source, new Map([["model.embed_tokens.weight", embeddings]]), "F32");
    const base = join(folder, "other.gguf");
    const converted = (type: number) => {
      writeLlama(base, [{ name: "token_embd.weight", dimensions: [256, 1], type }]);
      const bytes = convert(source, base);
      return bytes.subarray(readGgufHead(target).tensors[0]?.offset);
    };
    const blocks = converted(2);
    const read = values.map((_, i) => {
      const at = Math.floor(i / 32) * 18;
      const byte = blocks[at + 2 + (i % 16)] ?? 0;
      const scale = new Float16Array(new Uint8Array(blocks.subarray(at, at + 2)).buffer)[0] ?? 0;
      return ((i % 32 < 16 ? byte & 15 : byte >> 4) - 8) * scale;
    });
    expect(Math.max(...read.map((value, i) => Math.abs(value - (values[i] ?? 0))))).toBeLessThan(
      0.2,
    );
    expect(() => converted(16)).toThrow("token_embd.weight is of iq2_xxs, which needs calibration");
  });
});

type Written = Pick<GgufTensor, "name" | "dimensions" | "type">;

/** A GGUF file of a llama model without a vocabulary: 4 heads, 2 of them for keys, and zeros. */
function writeLlama(path: string, tensors: readonly Written[]): void {
  const parts: Uint8Array[] = [];
  const u32 = (value: number) => parts.push(new Uint8Array(Uint32Array.of(value).buffer));
  const u64 = (value: number) =>
    parts.push(new Uint8Array(BigUint64Array.of(BigInt(value)).buffer));
  const text = (value: string) => {
    u64(value.length);
    parts.push(new TextEncoder().encode(value));
  };
  u32(0x46554747);
  u32(3);
  u64(tensors.length);
  u64(4);
  text("general.architecture");
  u32(8);
  text("llama");
  for (const [key, value] of [
    ["llama.attention.head_count", 4],
    ["llama.attention.head_count_kv", 2],
  ] as const) {
    text(key);
    u32(4);
    u32(value);
  }
  text("tokenizer.ggml.tokens");
  u32(9);
  u32(8);
  u64(2);
  text("a");
  text("bc");
  let offset = 0;
  for (const { name, dimensions, type } of tensors) {
    text(name);
    u32(dimensions.length);
    for (const size of dimensions) u64(size);
    u32(type);
    u64(offset);
    offset += Math.ceil(dimensions.reduce((a, b) => a * b, 4) / 32) * 32;
  }
  const head = Buffer.concat(parts);
  const padding = new Uint8Array(Math.ceil(head.length / 32) * 32 - head.length);
  writeFileSync(path, Buffer.concat([head, padding, new Uint8Array(offset)]));
}
