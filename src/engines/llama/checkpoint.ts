// Hugging Face checkpoints: reads tensors from safetensors files (huggingface/safetensors), and writes them into a copy of
// a GGUF file of the same model, the base: head, metadata and layout are the base's, byte for byte, and each tensor has the
// base's type. Names and row orders are those of llama.cpp's convert_hf_to_gguf.py (gguf-py/gguf/tensor_mapping.py;
// LlamaModel.permute).

import { ptr } from "bun:ffi";
import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { AppError } from "../../core/base/errors.ts";
import {
  type ByteRange,
  copyRange,
  openToRead,
  readFully,
  unreadable,
  writeFully,
} from "./files.ts";
import { type GgufHead, type GgufTensor, readGgufHead } from "./gguf.ts";
import { nativeBytes } from "./libc.ts";
import { openLibrary, ptrText } from "./native.ts";

const SINGLE_FILE = "model.safetensors";
const INDEX_FILE = "model.safetensors.index.json";
/** The format's own limit. */
const HEADER_BYTES_MAX = 100_000_000;
const ELEMENT_BYTES: Readonly<Record<string, number>> = { F32: 4, F16: 2, BF16: 2 };

export interface SafeTensor {
  readonly name: string;
  readonly dtype: string;
  /** Outermost first. */
  readonly shape: readonly number[];
  readonly file: string;
  readonly offset: number;
  readonly bytes: number;
}

type Tensors = Map<string, SafeTensor>;

/**
 * The tensors by name, of one file, or of a folder with `model.safetensors` or with shards and their index; no data is read.
 * @throws AppError model_unreadable, which names the file, and the tensor if one is wrong.
 */
export function openSafetensors(path: string): Tensors {
  if (path.endsWith(".safetensors")) return new Map(headerOf(path));
  const single = join(path, SINGLE_FILE);
  if (existsSync(single)) return new Map(headerOf(single));
  const index = join(path, INDEX_FILE);
  if (!existsSync(index)) {
    throw unreadable(path, `holds neither ${SINGLE_FILE} nor ${INDEX_FILE}`);
  }
  const { weight_map: weightMap } = parseObject(readFileSync(index, "utf8"), index);
  const shards = [...new Set(Object.values(Object(weightMap)))];
  const tensors = shards.flatMap((shard) => {
    if (typeof shard === "string" && shard === shard.split(/[\\/]/).at(-1)) {
      return headerOf(join(dirname(index), shard));
    }
    throw unreadable(index, `names ${shard}, which is no file of this folder`);
  });
  if (tensors.length === 0) throw unreadable(index, "names no tensors");
  return new Map(tensors);
}

/** Reads a tensor as float32. @throws AppError model_unreadable: its dtype is unknown, or the file became shorter. */
export function readTensor(tensor: SafeTensor): Float32Array<ArrayBuffer> {
  const { dtype } = tensor;
  if (ELEMENT_BYTES[dtype] === undefined) {
    const known = Object.keys(ELEMENT_BYTES).join(", ");
    throw unreadable(
      tensor.file,
      `tensor ${tensor.name} is of dtype ${dtype}, not one of ${known}`,
    );
  }
  const buffer = new ArrayBuffer(tensor.bytes);
  const file = openToRead(tensor.file);
  try {
    readFully(file, new Uint8Array(buffer), tensor.offset, tensor.file);
  } finally {
    closeSync(file);
  }
  if (dtype === "F32") return new Float32Array(buffer);
  if (dtype === "F16") return new Float32Array(new Float16Array(buffer));
  // The upper halves of float32.
  const words = Uint32Array.from(new Uint16Array(buffer), (half) => half << 16);
  return new Float32Array(words.buffer);
}

function headerOf(path: string): [string, SafeTensor][] {
  const file = openToRead(path);
  try {
    const fileBytes = fstatSync(file).size;
    const head = new DataView(new ArrayBuffer(8));
    readFully(file, new Uint8Array(head.buffer), 0, path);
    const length = Number(head.getBigUint64(0, true));
    if (length > HEADER_BYTES_MAX || 8 + length > fileBytes) {
      throw unreadable(path, "is no safetensors file, or cut short");
    }
    const json = new Uint8Array(length);
    readFully(file, json, 8, path);
    const entries = Object.entries(parseObject(new TextDecoder().decode(json), path));
    const place = { path, dataOffset: 8 + length, fileBytes };
    return entries.flatMap(([name, entry]) =>
      name === "__metadata__" ? [] : [[name, tensorOf(name, entry, place)]],
    );
  } finally {
    closeSync(file);
  }
}

function tensorOf(
  name: string,
  entry: unknown,
  file: { path: string; dataOffset: number; fileBytes: number },
): SafeTensor {
  const { dtype, shape, data_offsets: range } = Object(entry) as Record<string, unknown>;
  const wrong = (problem: string): AppError => unreadable(file.path, `tensor ${name} ${problem}`);
  if (typeof dtype !== "string") throw wrong("has no dtype");
  if (!isSizes(shape)) throw wrong("has no shape");
  if (!isSizes(range)) throw wrong("has no data_offsets");
  const [from = 0, to = 0] = range;
  if (to < from || file.dataOffset + to > file.fileBytes) throw wrong("ends beyond the file");
  const wanted = shape.reduce((product, size) => product * size, ELEMENT_BYTES[dtype] ?? 0);
  if (dtype in ELEMENT_BYTES && to - from !== wanted) {
    throw wrong(`takes ${to - from} bytes, its shape ${wanted}`);
  }
  return { name, dtype, shape, file: file.path, offset: file.dataOffset + from, bytes: to - from };
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}

function parseObject(text: string, path: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch (cause) {
    throw unreadable(path, "its header is no JSON", cause);
  }
  throw unreadable(path, "its header is no JSON object");
}

/** llama: rows of q and k are interleaved for ggml's first kind of rotary embedding; the others' are not. */
const ARCHITECTURES = ["llama", "qwen2", "qwen3"];

const OUTSIDE_LAYERS: Readonly<Record<string, string>> = {
  token_embd: "model.embed_tokens",
  output_norm: "model.norm",
  output: "lm_head",
};

const IN_LAYER: Readonly<Record<string, string>> = {
  attn_norm: "input_layernorm",
  attn_q: "self_attn.q_proj",
  attn_k: "self_attn.k_proj",
  attn_v: "self_attn.v_proj",
  attn_output: "self_attn.o_proj",
  attn_q_norm: "self_attn.q_norm",
  attn_k_norm: "self_attn.k_norm",
  ffn_norm: "post_attention_layernorm",
  ffn_gate: "mlp.gate_proj",
  ffn_up: "mlp.up_proj",
  ffn_down: "mlp.down_proj",
};

/** Tensors that are computed from the configuration and not learned: the base's are kept. */
const KEPT = ["rope_freqs.weight"];
/** Tensors of the checkpoint to leave out, as llama.cpp's converter does. */
const IGNORED = /\.rotary_emb\.inv_freq$/;
const EMBEDDINGS = "model.embed_tokens.weight";
const OUTPUT = "lm_head.weight";

export interface ConversionOptions {
  /** The base, or only its form: the parts that `keptRanges` returns are read. */
  readonly base: string;
  /** A safetensors file, or a folder. */
  readonly source: string;
  readonly target: string;
  /** Called after each tensor. */
  readonly progress?: () => void;
}

/** The parts of the base that a conversion copies unchanged. */
export function keptRanges({ dataOffset, tensors }: GgufHead): ByteRange[] {
  return [{ offset: 0, bytes: dataOffset }, ...tensors.filter(({ name }) => KEPT.includes(name))];
}

/**
 * Writes a GGUF of the weights in `source` to `target`.
 * @throws AppError model_unreadable, naming the tensor that is missing, unknown, or of a wrong shape or type.
 */
export function convertWeights(options: ConversionOptions): void {
  const head = readGgufHead(options.base);
  const architecture = architectureOf(head);
  if (!ARCHITECTURES.includes(architecture)) {
    const known = ARCHITECTURES.join(", ");
    throw unreadable(options.source, `cannot become ${architecture} weights, only ${known}`);
  }
  const tensors = openSafetensors(options.source);
  checkNames(head, tensors, options.source);
  const base = openSync(options.base, "r");
  const target = openSync(options.target, "w");
  try {
    ftruncateSync(target, fstatSync(base).size);
    const files = { from: base, to: target, name: "the loaded model's file" };
    for (const range of keptRanges(head)) copyRange(files, range);
    for (const tensor of head.tensors) {
      if (KEPT.includes(tensor.name)) continue;
      const values = readTensor(sourceOf(tensor, tensors, options.source));
      writeFully(target, pack(inRowOrder(values, tensor, head), tensor), tensor.offset);
      options.progress?.();
    }
  } finally {
    closeSync(base);
    closeSync(target);
  }
}

function architectureOf({ values }: GgufHead): string {
  return `${values.get("general.architecture")?.bytes}`;
}

/** The checkpoint's name for a tensor of the base; null: none is known. */
export function checkpointName(ggufName: string): string | null {
  const match = /^(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)$/.exec(ggufName);
  if (match === null) return null;
  const [, layer, part = "", kind] = match;
  const name = layer === undefined ? OUTSIDE_LAYERS[part] : IN_LAYER[part];
  if (name === undefined) return null;
  return layer === undefined ? `${name}.${kind}` : `model.layers.${layer}.${name}.${kind}`;
}

/** Refuses a checkpoint with tensors that the base lacks, which would be lost silently. */
function checkNames(head: GgufHead, tensors: Tensors, source: string): void {
  const expected = new Set(head.tensors.map(({ name }) => checkpointName(name)));
  for (const [name, tensor] of tensors) {
    if (expected.has(name) || IGNORED.test(name)) continue;
    if (name === OUTPUT && isTied(tensors.get(EMBEDDINGS), tensor)) continue;
    throw unreadable(source, `tensor ${name} has no place in the loaded model`);
  }
}

/** Whether an output tensor equals the embeddings: some checkpoints of models with tied embeddings have both. */
function isTied(embeddings: SafeTensor | undefined, output: SafeTensor): boolean {
  if (embeddings === undefined || embeddings.bytes !== output.bytes) return false;
  const values = readTensor(output);
  return readTensor(embeddings).every((value, i) => value === values[i]);
}

/** The checkpoint's tensor for one of the base. */
function sourceOf({ name, dimensions }: GgufTensor, tensors: Tensors, source: string): SafeTensor {
  const wanted = checkpointName(name);
  if (wanted === null) throw unreadable(source, `nothing is known to become tensor ${name}`);
  // Tied embeddings are the output as well.
  const found = tensors.get(wanted) ?? (wanted === OUTPUT ? tensors.get(EMBEDDINGS) : undefined);
  if (found === undefined) throw unreadable(source, `tensor ${wanted} is missing`);
  const expected = dimensions.toReversed();
  // ggml does not tell a row from a vector.
  if (found.shape.join().replace(/^(1,)+/, "") === expected.join()) return found;
  const shape = `[${found.shape.join(", ")}], not the [${expected.join(", ")}] of ${name}`;
  throw unreadable(found.file, `tensor ${found.name} is of shape ${shape}`);
}

/** Reorders rows of llama's q and k: the two halves of each head are interleaved row by row. */
function inRowOrder(
  weights: Float32Array<ArrayBuffer>,
  tensor: GgufTensor,
  head: GgufHead,
): Float32Array<ArrayBuffer> {
  const part = /\.attn_([qk])\./.exec(tensor.name)?.[1];
  if (architectureOf(head) !== "llama" || part === undefined) return weights;
  const countOf = (key: string) => head.values.get(`llama.attention.${key}`)?.bytes.readUInt32LE();
  const heads = countOf("head_count") ?? 1;
  const kvHeads = countOf("head_count_kv") ?? heads;
  const rows = tensor.dimensions.at(-1) as number;
  const columns = weights.length / rows;
  const half = rows / (part === "q" ? heads : kvHeads) / 2;
  const ordered = new Float32Array(weights.length);
  for (let row = 0; row < rows; row += 1) {
    const within = row % (2 * half);
    const from = row - within + (within % 2) * half + (within >> 1);
    ordered.set(weights.subarray(from * columns, (from + 1) * columns), row * columns);
  }
  return ordered;
}

/** Converts weights to the base's type, with ggml's own quantisation. */
function pack(weights: Float32Array<ArrayBuffer>, tensor: GgufTensor): Uint8Array {
  const { ggml } = openLibrary();
  const { name, type, dimensions } = tensor;
  if (ggml.ggml_quantize_requires_imatrix(type)) {
    const problem = `tensor ${name} is of ${ptrText(ggml.ggml_type_name(type))}, which needs calibration data`;
    throw unreadable("the loaded model", problem);
  }
  const bytes = nativeBytes(tensor.bytes);
  const columns = dimensions[0] ?? 1;
  const rows = BigInt(weights.length / columns);
  ggml.ggml_quantize_chunk(type, ptr(weights), ptr(bytes), 0n, rows, BigInt(columns), null);
  return bytes;
}
