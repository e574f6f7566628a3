// Text to token ids and back, by the model's own vocabulary. Text is an edge convenience: everything
// between the edges is ids. It keeps a vocabulary of its own, so that it outlives a weight update.

import { type Pointer, ptr } from "bun:ffi";
import { assert } from "../../base/assert.ts";
import { AppError, InvalidFieldError } from "../../base/errors.ts";
import { type LlamaLibrary, nativeBytes, pointerOf } from "./native.ts";
import { LlamaWeights } from "./weights.ts";

const VOCABULARY_NONE = 0;
const PIECE_BYTES = 64;

export interface Tokenizer {
  readonly vocabularySize: number;
  /** Special tokens written in the text become their ids; no token is added. */
  encode(text: string): Int32Array;
  /** Characters split over several tokens come out whole; bytes that are not UTF-8 become U+FFFD. */
  decode(tokens: ArrayLike<number>): string;
}

export class LlamaTokenizer implements Tokenizer {
  readonly vocabularySize: number;
  readonly #weights: LlamaWeights;
  readonly #vocab: Pointer;
  readonly #pieces = new Map<number, Uint8Array>();
  readonly #piece = nativeBytes(PIECE_BYTES);

  /** @throws AppError model_unreadable: no such file, not GGUF, or a model without a vocabulary. */
  constructor(library: LlamaLibrary, path: string) {
    this.#weights = LlamaWeights.load(library, path, { vocabularyOnly: true });
    const vocab = pointerOf(library.llama.llama_model_get_vocab(this.#weights.pointer));
    assert(vocab !== null, "a loaded model has a vocabulary");
    this.#vocab = vocab;
    this.vocabularySize = this.#weights.info.shape.vocabularySize;
    // llama.cpp aborts the process when such a vocabulary is asked to tokenize.
    if (library.llama.llama_vocab_type(vocab) === VOCABULARY_NONE) {
      this.#weights.free();
      throw new AppError("model_unreadable", `${path}: the model has no tokenizer`);
    }
  }

  encode(text: string): Int32Array {
    const utf8 = new TextEncoder().encode(text);
    if (utf8.length === 0) return new Int32Array(0);
    const bytes = nativeBytes(utf8.length);
    bytes.set(utf8);
    // No token is shorter than a byte, so this is always room enough.
    const out = new Int32Array(new ArrayBuffer((utf8.length + 1) * 4));
    const count = this.#weights.library.llama.llama_tokenize(
      this.#vocab,
      ptr(bytes),
      bytes.length,
      ptr(out),
      out.length,
      false,
      true,
    );
    assert(count >= 0, "the token buffer holds a token per byte");
    return out.slice(0, count);
  }

  decode(tokens: ArrayLike<number>): string {
    const pieces: Uint8Array[] = [];
    let bytes = 0;
    for (let i = 0; i < tokens.length; i += 1) {
      const piece = this.#pieceOf(tokens[i] as number);
      pieces.push(piece);
      bytes += piece.length;
    }
    const all = new Uint8Array(bytes);
    let at = 0;
    for (const piece of pieces) {
      all.set(piece, at);
      at += piece.length;
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(all);
  }

  close(): void {
    this.#weights.free();
  }

  /** Bounded by the vocabulary. */
  #pieceOf(token: number): Uint8Array {
    const known = this.#pieces.get(token);
    if (known !== undefined) return known;
    if (!Number.isInteger(token) || token < 0 || token >= this.vocabularySize) {
      throw new InvalidFieldError({
        where: "decode",
        field: "token",
        problem: `is ${token}, not in 0..${this.vocabularySize - 1}`,
      });
    }
    let buffer = this.#piece;
    let length = this.#toPiece(token, buffer);
    if (length < 0) {
      buffer = nativeBytes(-length);
      length = this.#toPiece(token, buffer);
    }
    assert(length >= 0, "the piece buffer has the size the library asked for");
    const piece = buffer.slice(0, length);
    this.#pieces.set(token, piece);
    return piece;
  }

  #toPiece(token: number, buffer: Uint8Array): number {
    const { llama } = this.#weights.library;
    return llama.llama_token_to_piece(this.#vocab, token, ptr(buffer), buffer.length, 0, true);
  }
}
