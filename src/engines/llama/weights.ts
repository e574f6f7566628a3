// A model's weights: loaded once per process, used by every engine thread through a pointer, and freed by the
// code that loaded them. It decides which files are readable, and which architectures the engine can serve.

import { type Pointer, ptr } from "bun:ffi";
import { assert } from "../../core/base/assert.ts";
import type { WeightsId } from "../../core/base/ids.ts";
import { unreadable } from "./files.ts";
import { cString, nativeBytes } from "./libc.ts";
import { addressOf, openLibrary, pointerOf } from "./native.ts";

/** The shape of a model. A weight update needs an equal shape. */
export interface ModelShape {
  readonly architecture: string;
  readonly vocabularySize: number;
  readonly layers: number;
  readonly embedding: number;
  readonly kvHeads: number;
}

/** Facts about a model, as plain data for messages between threads. */
export interface ModelInfo {
  readonly path: string;
  readonly shape: ModelShape;
  /** Context the model was trained for, in tokens. */
  readonly contextTokens: number;
  readonly eosTokenId: number;
  /** Every token that ends a text, eos included, ascending. */
  readonly stopTokenIds: readonly number[];
}

/** Weights that this process has loaded: all of its threads may use the pointer. */
export interface SharedWeights {
  readonly id: WeightsId;
  readonly pointer: number;
  readonly info: ModelInfo;
}

/** Loaded weights with the number of their holders. The last one to release them frees them. */
export class HeldWeights {
  readonly weights: SharedWeights;
  readonly #free: () => void;
  #holders = 1;

  constructor(weights: SharedWeights, free: () => void) {
    this.weights = weights;
    this.#free = free;
  }

  /** One holder more, who releases them as well. */
  hold(): HeldWeights {
    assert(this.#holders > 0, "weights are held until they are freed");
    this.#holders += 1;
    return this;
  }

  release(): void {
    this.#holders -= 1;
    assert(this.#holders >= 0, "weights are released by their holders");
    if (this.#holders === 0) this.#free();
  }
}

interface LoadOptions {
  /** true: loads only the vocabulary, for a tokenizer. */
  readonly vocabularyOnly: boolean;
  /** true: loads the file only to test it (native/llama-shim.c). */
  readonly isTrial: boolean;
  /** Name of the file in errors. */
  readonly name: string;
}

export class LlamaWeights {
  readonly pointer: Pointer;
  readonly info: ModelInfo;

  /** A model that this thread or another has loaded and keeps alive. */
  constructor({ pointer, info }: Pick<SharedWeights, "pointer" | "info">) {
    assert(pointer > 0, "a loaded model has an address");
    this.pointer = pointer as Pointer;
    this.info = info;
  }

  /**
   * Loads a file. Blocks meanwhile; afterwards nothing depends on the file. A damaged file may end the process,
   * so weights-reader.ts first tests it in a child process.
   * @throws AppError model_unreadable, which names the file.
   */
  static load(path: string, given: Partial<LoadOptions> = {}): LlamaWeights {
    const { vocabularyOnly = false, isTrial = false, name = path } = given;
    const { llama, shim } = openLibrary();
    const defaults = addressOf(llama.llama_model_default_params);
    const load = addressOf(llama.llama_model_load_from_file);
    const pointer = pointerOf(
      shim.shim_model_load(defaults, load, ptr(cString(path)), vocabularyOnly, isTrial),
    );
    if (pointer === null)
      throw unreadable(name, "llama.cpp cannot load it, damaged or unsupported");
    const problem = vocabularyOnly ? null : unsupported(pointer);
    if (problem !== null) {
      llama.llama_model_free(pointer);
      throw unreadable(name, problem);
    }
    return new LlamaWeights({ pointer, info: infoOf(pointer, name, vocabularyOnly) });
  }

  /** Frees the model. Only its loader may call this, after all contexts are freed. */
  free(): void {
    openLibrary().llama.llama_model_free(this.pointer);
  }
}

/** Why the engine cannot serve the architecture; null: it can. A rejected draft's KV, for instance, must be removable. */
function unsupported(pointer: Pointer): string | null {
  const { llama } = openLibrary();
  if (llama.llama_model_is_recurrent(pointer) || llama.llama_model_is_hybrid(pointer)) {
    return "recurrent models cannot take back rejected drafts and are not supported";
  }
  if (llama.llama_model_has_encoder(pointer)) return "encoder models are not supported";
  return null;
}

function infoOf(pointer: Pointer, path: string, vocabularyOnly: boolean): ModelInfo {
  const { llama } = openLibrary();
  const vocab = pointerOf(llama.llama_model_get_vocab(pointer));
  assert(vocab !== null, "a loaded model has a vocabulary");
  const vocabularySize = llama.llama_vocab_n_tokens(vocab);
  const stopTokenIds: number[] = [];
  for (let token = 0; token < vocabularySize; token += 1) {
    if (llama.llama_vocab_is_eog(vocab, token)) stopTokenIds.push(token);
  }
  return {
    path,
    shape: {
      architecture: metaString(pointer, "general.architecture"),
      vocabularySize,
      layers: llama.llama_model_n_layer(pointer),
      embedding: llama.llama_model_n_embd(pointer),
      // Aborts the process where no layer was read.
      kvHeads: vocabularyOnly ? 0 : llama.llama_model_n_head_kv(pointer),
    },
    contextTokens: llama.llama_model_n_ctx_train(pointer),
    eosTokenId: llama.llama_vocab_eos(vocab),
    stopTokenIds,
  };
}

/** A string of the file's metadata; empty: there is none. */
export function metaString(pointer: Pointer, key: string): string {
  const name = cString(key);
  // Returns the bytes of the value, whether it fits or not; negative: there is none.
  const read = (value: Uint8Array): number =>
    openLibrary().llama.llama_model_meta_val_str(pointer, ptr(name), ptr(value), value.length);
  const value = nativeBytes(Math.max(0, read(nativeBytes(1))) + 1);
  read(value);
  return new TextDecoder().decode(value.subarray(0, -1));
}

/** The first difference between two shapes, or null. */
export function shapeDifference(current: ModelShape, next: ModelShape): string | null {
  for (const key of Object.keys(current) as (keyof ModelShape)[]) {
    if (current[key] !== next[key]) return `${key} is ${next[key]}, was ${current[key]}`;
  }
  return null;
}
