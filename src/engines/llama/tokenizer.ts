// The Text port over a GGUF file: its vocabulary, through llama.cpp, and its chat template. Text occurs at the
// edges only: everything between them is ids. A weight update does not change it.

import { type Pointer, ptr } from "bun:ffi";
import { assert } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import { ChatTemplate } from "../../text/chat-template.ts";
import { VocabularyText } from "../../text/decoding.ts";
import type { EncoderThread } from "../../text/encoder.ts";
import { openThread } from "../../text/job-lane.ts";
import { nativeBytes } from "./libc.ts";
import { openLibrary, pointerOf } from "./native.ts";
import { LlamaWeights, metaString } from "./weights.ts";

const VOCABULARY_NONE = 0;
const PIECE_BYTES = 64;

const THREAD = new URL("./text-thread.ts", import.meta.url);
const NOTHING_ADDED = { addSpecial: false };

/** Keys of the chat templates in a GGUF file, by Hugging Face's names for them. */
const TEMPLATE_KEYS = {
  default: "tokenizer.chat_template",
  tool_use: "tokenizer.chat_template.tool_use",
} as const;

export class LlamaTokenizer extends VocabularyText {
  readonly vocabularySize: number;
  readonly #llama = openLibrary().llama;
  readonly #weights: LlamaWeights;
  readonly #vocab: Pointer;
  protected readonly template: ChatTemplate;
  /** Caches, which the size of the vocabulary bounds. */
  readonly #pieces = new Map<number, Uint8Array>();
  readonly #special = new Map<number, boolean>();
  readonly #piece = nativeBytes(PIECE_BYTES);
  #hasThreads = false;

  /** Loads the vocabulary of a file. `name`: the file's name in errors. @throws AppError model_unreadable. */
  static load(path: string, name = path): LlamaTokenizer {
    const weights = LlamaWeights.load(path, { vocabularyOnly: true, name });
    try {
      return new LlamaTokenizer(weights, name);
    } catch (error) {
      weights.free();
      throw error;
    }
  }

  /** Uses loaded weights, which must stay open. @throws AppError model_unreadable. */
  constructor(weights: LlamaWeights, name = weights.info.path) {
    super();
    const { pointer, info } = weights;
    this.#weights = weights;
    const vocab = pointerOf(this.#llama.llama_model_get_vocab(pointer));
    assert(vocab !== null, "a loaded model has a vocabulary");
    this.#vocab = vocab;
    this.vocabularySize = info.shape.vocabularySize;
    // llama.cpp aborts the process when such a vocabulary is asked to tokenize.
    if (this.#llama.llama_vocab_type(vocab) === VOCABULARY_NONE) {
      throw new AppError("model_unreadable", `${name}: the model has no tokenizer`);
    }
    const keys = Object.entries(TEMPLATE_KEYS);
    const templates = keys.map(([of, key]) => [of, metaString(pointer, key)] as const);
    // The texts of two tokens, under the names that templates use.
    const named = [
      ["bos_token", this.#llama.llama_vocab_bos(vocab)],
      ["eos_token", this.#llama.llama_vocab_eos(vocab)],
    ] as const;
    this.template = new ChatTemplate(
      new Map(templates.filter(([, source]) => source !== "")),
      Object.fromEntries(
        named.flatMap(([of, token]) => (token < 0 ? [] : [[of, this.decode([token])]])),
      ),
    );
  }

  encode(text: string, options: { addSpecial: boolean } = NOTHING_ADDED): Int32Array {
    const utf8 = new TextEncoder().encode(text);
    // The library is given the length without the final byte, which is there so that none is empty.
    const bytes = nativeBytes(utf8.length + 1);
    bytes.set(utf8);
    // No token is shorter than a byte, and at most two are added: this is always room enough.
    const out = new Int32Array(new ArrayBuffer((utf8.length + 3) * 4));
    const count = this.#llama.llama_tokenize(
      this.#vocab,
      ptr(bytes),
      utf8.length,
      ptr(out),
      out.length,
      options.addSpecial,
      true,
    );
    assert(count >= 0, "the token buffer holds a token per byte");
    return out.slice(0, count);
  }

  /** Opens a thread that encodes with the same vocabulary. */
  openThread(): EncoderThread {
    this.#hasThreads = true;
    const { pointer, info } = this.#weights;
    return openThread(THREAD, { pointer, info });
  }

  close(): void {
    // A thread that was stopped may still be at work on it.
    if (!this.#hasThreads) this.#weights.free();
  }

  pieceOf(token: number): Uint8Array {
    return this.#pieces.getOrInsertComputed(token, () => this.#readPiece(token, true));
  }

  /** Whether a token is special: then the library decodes it to no text, unless that is requested. */
  isSpecial(token: number): boolean {
    const isHidden = () => this.#readPiece(token, false).length === 0;
    return this.#special.getOrInsertComputed(
      token,
      () => this.pieceOf(token).length > 0 && isHidden(),
    );
  }

  #readPiece(token: number, special: boolean): Uint8Array {
    let buffer = this.#piece;
    let length = this.#toPiece(token, buffer, special);
    if (length < 0) {
      buffer = nativeBytes(-length);
      length = this.#toPiece(token, buffer, special);
    }
    assert(length >= 0, "the piece buffer has the size the library asked for");
    return buffer.slice(0, length);
  }

  #toPiece(token: number, buffer: Uint8Array, special: boolean): number {
    const { length } = buffer;
    return this.#llama.llama_token_to_piece(this.#vocab, token, ptr(buffer), length, 0, special);
  }
}
