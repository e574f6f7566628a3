// One llama.cpp context: a batch of rows to decode, the KV of its streams, and their logits. It owns the
// context and the arrays that C reads; it knows no requests and budgets. A stream is the KV cells of one
// sequence (kv_unified = 0), numbered 0..streams - 1.

import { type Pointer, ptr } from "bun:ffi";
import { assert } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import { addressOf, openLibrary, pointerOf } from "./native.ts";
import type { LlamaWeights } from "./weights.ts";

export interface ContextOptions {
  /** Sequences resident at the same time, at most. */
  readonly streams: number;
  /** Tokens a stream holds, at most. */
  readonly streamTokens: number;
  /** Rows of one decode, at most. */
  readonly batchRows: number;
}

/**
 * Rows per graph. With 64 or more query rows of one stream, flash attention would use a tiled kernel that
 * sums in another order, so this bound keeps results independent of how rows are batched.
 */
export const GRAPH_ROWS = 48;
/** llama.cpp rounds a stream's cells up to this. */
const STREAM_TOKENS_STEP = 256;

export class LlamaContext {
  readonly batchRows: number;
  /** Number of streams. */
  readonly streams: number;
  readonly #llama = openLibrary().llama;
  readonly #shim = openLibrary().shim;
  readonly #context: Pointer;
  readonly #memory: Pointer;
  readonly #vocabularySize: number;
  readonly #decode: Pointer;
  readonly #getLogits: Pointer;
  /** Tokens, positions and streams of the rows, in columns, and a column that the shim fills. */
  readonly #columns: Int32Array;
  readonly #outputs: Int8Array;
  readonly #addresses: BigUint64Array;
  #rows = 0;
  #freed = false;

  /** @throws AppError worker_failed: there is no memory for that many streams. */
  constructor(model: LlamaWeights, options: ContextOptions) {
    const llama = this.#llama;
    this.batchRows = options.batchRows;
    this.streams = options.streams;
    this.#vocabularySize = model.info.shape.vocabularySize;
    const streamTokens = Math.ceil(options.streamTokens / STREAM_TOKENS_STEP) * STREAM_TOKENS_STEP;
    const context = pointerOf(
      this.#shim.shim_context_create(
        addressOf(llama.llama_context_default_params),
        addressOf(llama.llama_init_from_model),
        model.pointer,
        options.streams,
        streamTokens,
        options.batchRows,
        GRAPH_ROWS,
      ),
    );
    if (context === null) {
      const size = `${options.streams} sequences of ${streamTokens} tokens`;
      throw new AppError("worker_failed", `llama.cpp cannot make a context of ${size}`);
    }
    this.#context = context;
    const memory = pointerOf(llama.llama_get_memory(context));
    assert(memory !== null, "a decoder's context has KV memory");
    this.#memory = memory;
    this.#decode = addressOf(llama.llama_decode);
    this.#getLogits = addressOf(llama.llama_get_logits_ith);

    const rows = options.batchRows;
    this.#columns = new Int32Array(new ArrayBuffer(4 * rows * 4));
    this.#outputs = new Int8Array(new ArrayBuffer(rows));
    this.#addresses = new BigUint64Array(new ArrayBuffer(rows * 8));
  }

  /** Rows collected for the next decode. */
  get rows(): number {
    return this.#rows;
  }

  /** Adds a row and returns its index. If `output`, its logits can be read after `decode`. */
  add(token: number, position: number, stream: number, output: boolean): number {
    const row = this.#rows;
    // More rows than n_batch would abort the process inside llama.cpp.
    assert(row < this.batchRows, "a step's rows fit in a batch");
    this.#columns[row] = token;
    this.#columns[this.batchRows + row] = position;
    this.#columns[2 * this.batchRows + row] = stream;
    this.#outputs[row] = output ? 1 : 0;
    this.#rows = row + 1;
    return row;
  }

  /** Computes the collected rows and starts a new batch. @throws AppError worker_failed. */
  decode(): void {
    assert(this.#rows > 0, "a decode has rows");
    const rows = this.#rows;
    this.#rows = 0;
    const status = this.#shim.shim_decode(
      this.#decode,
      this.#context,
      rows,
      this.batchRows,
      ptr(this.#columns),
      ptr(this.#outputs),
      ptr(this.#addresses),
    );
    if (status !== 0) {
      throw new AppError("worker_failed", `llama_decode failed with status ${status}`);
    }
  }

  /** Copies the logits of a row of the last decode to `target`, which has room for the vocabulary. */
  copyLogits(row: number, target: Pointer): void {
    const copied = this.#shim.shim_copy_logits(
      this.#getLogits,
      this.#context,
      row,
      target,
      this.#vocabularySize,
    );
    assert(copied === 1, "the row was decoded with output");
  }

  /** Removes the stream's KV from `position` on. */
  truncate(stream: number, position: number): void {
    this.#llama.llama_memory_seq_rm(this.#memory, stream, position, -1);
  }

  clear(stream: number): void {
    this.#llama.llama_memory_seq_rm(this.#memory, stream, -1, -1);
  }

  /** Bytes that `exportStream` would write for the stream now. */
  stateBytes(stream: number): number {
    return Number(this.#llama.llama_state_seq_get_size(this.#context, stream));
  }

  /** Writes the stream's KV into `target` and returns the number of bytes; 0: it did not fit. */
  exportStream(stream: number, target: Uint8Array): number {
    const written = this.#llama.llama_state_seq_get_data(
      this.#context,
      ptr(target),
      target.length,
      stream,
    );
    return Number(written);
  }

  /** Replaces the stream's KV. false: llama.cpp refused it, and the stream is empty. */
  importStream(stream: number, source: Uint8Array): boolean {
    const read = this.#llama.llama_state_seq_set_data(
      this.#context,
      ptr(source),
      source.length,
      stream,
    );
    if (Number(read) === source.length) return true;
    this.clear(stream);
    return false;
  }

  free(): void {
    if (this.#freed) return;
    this.#freed = true;
    this.#llama.llama_free(this.#context);
  }
}
