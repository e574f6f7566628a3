// Makes the priced model: the bundled model, widened and deepened so that a decode step costs what a real model's step
// costs, with the same output. As Hugging Face files for vLLM, in the project's ignored cache; for embedded engines
// `foretoken rollout --model priced` makes one in memory (src/cli/priced-model.ts).
//
//   npm run model:priced -- [--factor 4] [--layers 4] [--out .cache/model-priced]
//
// Widening by a factor f, a power of four so that sqrt(f) is exact: every matrix gets zeros up to f times its rows and
// columns (heads and KV heads times f, the head size stays), so every sum is the same. RMSNorm takes the mean
// over f times as many values, of which the new ones are zero: the norm's weights are divided by sqrt(f) and its epsilon
// by f. Further layers have seeded weights and output projections of zeros, so they add nothing to the residual.

import { closeSync, cpSync, mkdirSync, openSync, readFileSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { fold32 } from "../src/core/base/hash.ts";
import { openSafetensors, readTensor } from "../src/engines/llama/safetensors.ts";

const root = join(import.meta.dir, "..");
const SOURCE = join(root, "model", "hf");
const SEED = 42;
/** Bound of the weights of further layers: small enough for bf16 products to stay finite, and not zero. */
const NOISE = 0.02;

interface Config extends Record<string, unknown> {
  hidden_size: number;
  intermediate_size: number;
  num_attention_heads: number;
  num_key_value_heads: number;
  num_hidden_layers: number;
  layer_types: string[];
  rms_norm_eps: number;
}

export interface PricedOptions {
  /** 1, 4, 16, ...: hidden size, feed-forward size, heads and KV heads times this. */
  readonly factor: number;
  /** At least as many as the bundled model has. */
  readonly layers: number;
  /** An output folder, recreated: `hf/` in it. */
  readonly out: string;
}

export interface PricedModel {
  readonly folder: string;
  readonly parameters: number;
}

interface Tensor {
  readonly shape: readonly number[];
  readonly values: Float32Array;
}

/** @throws Error naming the option and its bound. */
export function writePricedModel({ factor, layers, out }: PricedOptions): PricedModel {
  const config = JSON.parse(readFileSync(join(SOURCE, "config.json"), "utf8")) as Config;
  if (!Number.isInteger(Math.log2(factor) / 2) || factor < 1 || factor > 64) {
    throw new Error(`--factor is ${factor}; it is a power of four between 1 and 64`);
  }
  const ownLayers = config.num_hidden_layers;
  if (!Number.isInteger(layers) || layers < ownLayers || layers > 256) {
    throw new Error(`--layers is ${layers}; it is a whole number between ${ownLayers} and 256`);
  }
  const folder = join(out, "hf");
  rmSync(out, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  cpSync(SOURCE, folder, { recursive: true, filter: (path) => !path.endsWith(".safetensors") });
  const wide = widened(config, factor, layers);
  writeFully(join(folder, "config.json"), [
    new TextEncoder().encode(JSON.stringify(wide, null, 2)),
  ]);
  const tensors = widenedTensors(config, factor, layers);
  writeSafetensors(join(folder, "model.safetensors"), tensors);
  const parameters = [...tensors.values()].reduce((sum, { values }) => sum + values.length, 0);
  return { folder, parameters };
}

function widened(config: Config, factor: number, layers: number): Config {
  return {
    ...config,
    hidden_size: config.hidden_size * factor,
    intermediate_size: config.intermediate_size * factor,
    num_attention_heads: config.num_attention_heads * factor,
    num_key_value_heads: config.num_key_value_heads * factor,
    num_hidden_layers: layers,
    layer_types: Array.from({ length: layers }, () => "full_attention"),
    rms_norm_eps: config.rms_norm_eps / factor,
  };
}

function widenedTensors(config: Config, factor: number, layers: number): Map<string, Tensor> {
  const tensors = new Map<string, Tensor>();
  const source = openSafetensors(SOURCE);
  for (const [name, held] of source) {
    tensors.set(name, wider({ shape: held.shape, values: readTensor(name, held) }, name, factor));
  }
  for (let layer = config.num_hidden_layers; layer < layers; layer += 1) {
    for (const [name, tensor] of [...tensors]) {
      if (!name.startsWith("model.layers.0.")) continue;
      const own = name.replace("model.layers.0.", `model.layers.${layer}.`);
      tensors.set(own, { shape: tensor.shape, values: idle(own, tensor) });
    }
  }
  return tensors;
}

/** The tensor in the upper left corner of one that is `factor` times as large. */
function wider({ shape, values }: Tensor, name: string, factor: number): Tensor {
  const [rows = 1, columns] = shape;
  if (columns === undefined) {
    // The norms of heads keep their size; those of the residual are over `factor` times as many values.
    if (/\.[qk]_norm\./.test(name)) return { shape, values };
    const wide = new Float32Array(rows * factor).fill(1);
    wide.set(values.map((value) => value / Math.sqrt(factor)));
    return { shape: [rows * factor], values: wide };
  }
  // A token has one row of the embeddings, however wide the model is.
  const wideRows = name.includes("embed_tokens") ? rows : rows * factor;
  const wideColumns = columns * factor;
  const wide = new Float32Array(wideRows * wideColumns);
  for (let row = 0; row < rows; row += 1) {
    wide.set(values.subarray(row * columns, (row + 1) * columns), row * wideColumns);
  }
  return { shape: [wideRows, wideColumns], values: wide };
}

/** Weights of a layer that adds nothing. */
function idle(name: string, { shape, values }: Tensor): Float32Array {
  if (shape.length === 1) return new Float32Array(values.length).fill(1);
  const weights = new Float32Array(values.length);
  if (/(o_proj|down_proj)\.weight$/.test(name)) return weights;
  let state = fold32(SEED, name.length);
  for (const letter of name) state = fold32(state, letter.charCodeAt(0));
  for (let i = 0; i < weights.length; i += 1) {
    // xorshift32 (Marsaglia 2003).
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    weights[i] = ((state >>> 0) / 2 ** 31 - 1) * NOISE;
  }
  return weights;
}

/** In bf16, as the bundled model is: every value of it, and half of it, is exact. */
function writeSafetensors(path: string, tensors: ReadonlyMap<string, Tensor>): void {
  const header: Record<string, unknown> = { __metadata__: { format: "pt" } };
  let at = 0;
  for (const [name, { shape, values }] of tensors) {
    header[name] = { dtype: "BF16", shape, data_offsets: [at, at + 2 * values.length] };
    at += 2 * values.length;
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const length = new DataView(new ArrayBuffer(8));
  length.setBigUint64(0, BigInt(json.length), true);
  const parts = [...tensors.values()].map(({ values }) => bf16(values));
  writeFully(path, [new Uint8Array(length.buffer), json, ...parts]);
}

function bf16(values: Float32Array): Uint8Array {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const halves = new Uint16Array(words.length);
  for (let i = 0; i < words.length; i += 1) halves[i] = (words[i] as number) >>> 16;
  return new Uint8Array(halves.buffer);
}

function writeFully(path: string, parts: readonly Uint8Array[]): void {
  const file = openSync(path, "w");
  for (const part of parts) {
    for (let done = 0; done < part.length; ) done += writeSync(file, part, done);
  }
  closeSync(file);
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      factor: { type: "string", default: "4" },
      layers: { type: "string", default: "4" },
      out: { type: "string", default: join(root, ".cache", "model-priced") },
    },
  });
  try {
    const made = writePricedModel({
      factor: Number(values.factor),
      layers: Number(values.layers),
      out: values.out,
    });
    console.error(`${(made.parameters / 1e6).toFixed(1)} M parameters`);
    console.log(made.folder);
  } catch (error) {
    console.error(`model:priced: ${error instanceof Error ? error.message : String(error)}`);
    process.exit(2);
  }
}
