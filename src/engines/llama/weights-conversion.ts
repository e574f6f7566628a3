// Writes the weights of a Hugging Face checkpoint into a copy of a GGUF file of the same model, the base: head,
// metadata and layout are the base's, byte for byte, and each tensor has the base's type. Names and row orders
// are those of llama.cpp's convert_hf_to_gguf.py (gguf-py/gguf/tensor_mapping.py; LlamaModel.permute).

import { ptr } from "bun:ffi";
import { closeSync, fstatSync, ftruncateSync, openSync } from "node:fs";
import { nativeBytes } from "./c-bytes.ts";
import { type ByteRange, copyRange, unreadable, writeFully } from "./files.ts";
import { type GgufHead, type GgufTensor, readGgufHead } from "./gguf.ts";
import { openLibrary, ptrText } from "./native.ts";
import { openSafetensors, readTensor, type SafeTensor } from "./safetensors.ts";

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
      const values = valuesOf(tensor, tensors, options.source);
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
  if (layer === undefined) {
    const name = OUTSIDE_LAYERS[part];
    return name === undefined ? null : `${name}.${kind}`;
  }
  const name = IN_LAYER[part];
  return name === undefined ? null : `model.layers.${layer}.${name}.${kind}`;
}

/** Refuses a checkpoint with tensors that the base lacks, which would be lost silently. */
function checkNames(head: GgufHead, tensors: Map<string, SafeTensor>, source: string): void {
  const expected = new Set(head.tensors.map(({ name }) => checkpointName(name)));
  for (const [name, tensor] of tensors) {
    if (expected.has(name) || IGNORED.test(name)) continue;
    if (name === OUTPUT && isTied(tensors, tensor)) continue;
    throw unreadable(source, `tensor ${name} has no place in the loaded model`);
  }
}

/** Whether an output tensor equals the embeddings: some checkpoints of models with tied embeddings have both. */
function isTied(tensors: Map<string, SafeTensor>, output: SafeTensor): boolean {
  const embeddings = tensors.get(EMBEDDINGS);
  if (embeddings === undefined || embeddings.bytes !== output.bytes) return false;
  const a = readTensor(EMBEDDINGS, embeddings);
  const b = readTensor(OUTPUT, output);
  return a.every((value, i) => value === b[i]);
}

/** The checkpoint's values for a tensor of the base. */
function valuesOf(
  { name: ggufName, dimensions }: GgufTensor,
  tensors: Map<string, SafeTensor>,
  source: string,
): Float32Array<ArrayBuffer> {
  const own = checkpointName(ggufName);
  if (own === null) throw unreadable(source, `nothing is known to become tensor ${ggufName}`);
  // Tied embeddings are the output as well.
  const name = own === OUTPUT && !tensors.has(OUTPUT) ? EMBEDDINGS : own;
  const held = tensors.get(name);
  if (held === undefined) throw unreadable(source, `tensor ${own} is missing`);
  const expected = dimensions.toReversed();
  // ggml does not tell a row from a vector.
  if (held.shape.join().replace(/^(1,)+/, "") === expected.join()) return readTensor(name, held);
  const shape = `[${held.shape.join(", ")}], not the [${expected.join(", ")}] of ${ggufName}`;
  throw unreadable(held.file, `tensor ${name} is of shape ${shape}`);
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
  const at = { from: ptr(weights), to: ptr(bytes) };
  ggml.ggml_quantize_chunk(type, at.from, at.to, 0n, rows, BigInt(columns), null);
  return bytes;
}
