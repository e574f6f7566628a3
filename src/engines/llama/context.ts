// One llama.cpp context: a batch of rows to decode, the KV of its streams, and their logits. It owns the
// context and the arrays that C reads; it knows no requests and budgets. A stream is the KV cells of one
// sequence (kv_unified = 0), numbered 0..streams - 1.

import { type Pointer, ptr } from "bun:ffi";
import { assert } from "../../core/base/assert.ts";
import { AppError } from "../../core/base/errors.ts";
import { nativeBytes } from "./libc.ts";
import { addressOf, openLibrary, pointerOf } from "./native.ts";
import { BATCH_BYTES, BATCH_WORD, CONTEXT_PARAMS_BYTES, setContextParams } from "./structs.ts";
import type { LlamaWeights } from "./weights.ts";

export interface ContextOptions {
  /** Sequences resident at the same time, at most. */
  readonly streams: number;
  /** Tokens a stream holds, at most. */
  readonly streamTokens: number;
  /** Rows of one decode, at most. */
  readonly batchRows: number;
}

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
  readonly #batch: Uint8Array<ArrayBuffer>;
  readonly #batchPointer: Pointer;
  readonly #rowCount: Int32Array;
  readonly #tokens: Int32Array;
  readonly #positions: Int32Array;
  readonly #streams: Int32Array;
  readonly #streamPointers: BigUint64Array;
  readonly #streamCounts: Int32Array;
  readonly #outputs: Int8Array;
  #rows = 0;
  #freed = false;

  /** @throws AppError worker_failed: there is no memory for that many streams. */
  constructor(model: LlamaWeights, options: ContextOptions) {
    const llama = this.#llama;
    this.batchRows = options.batchRows;
    this.streams = options.streams;
    this.#vocabularySize = model.info.shape.vocabularySize;
    const params = nativeBytes(CONTEXT_PARAMS_BYTES);
    const defaults = addressOf(llama.llama_context_default_params);
    this.#shim.shim_context_default_params(defaults, ptr(params));
    const streamTokens = Math.ceil(options.streamTokens / STREAM_TOKENS_STEP) * STREAM_TOKENS_STEP;
    setContextParams(new DataView(params.buffer), { ...options, streamTokens });
    const create = addressOf(llama.llama_init_from_model);
    const context = pointerOf(this.#shim.shim_context_create(create, model.pointer, ptr(params)));
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
    this.#tokens = new Int32Array(new ArrayBuffer(rows * 4));
    this.#positions = new Int32Array(new ArrayBuffer(rows * 4));
    this.#streams = new Int32Array(new ArrayBuffer(rows * 4));
    this.#streamCounts = new Int32Array(new ArrayBuffer(rows * 4)).fill(1);
    this.#outputs = new Int8Array(new ArrayBuffer(rows));
    this.#streamPointers = new BigUint64Array(new ArrayBuffer((rows + 1) * 8));
    for (let i = 0; i < rows; i += 1) {
      this.#streamPointers[i] = BigInt(ptr(this.#streams) + i * 4);
    }
    this.#batch = nativeBytes(BATCH_BYTES);
    const words = new BigUint64Array(this.#batch.buffer);
    words[BATCH_WORD.tokens] = BigInt(ptr(this.#tokens));
    words[BATCH_WORD.positions] = BigInt(ptr(this.#positions));
    words[BATCH_WORD.streamCounts] = BigInt(ptr(this.#streamCounts));
    words[BATCH_WORD.streams] = BigInt(ptr(this.#streamPointers));
    words[BATCH_WORD.outputs] = BigInt(ptr(this.#outputs));
    this.#rowCount = new Int32Array(this.#batch.buffer, 0, 2);
    this.#batchPointer = ptr(this.#batch);
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
    this.#tokens[row] = token;
    this.#positions[row] = position;
    this.#streams[row] = stream;
    this.#outputs[row] = output ? 1 : 0;
    this.#rows = row + 1;
    return row;
  }

  /** Computes the collected rows and starts a new batch. @throws AppError worker_failed. */
  decode(): void {
    assert(this.#rows > 0, "a decode has rows");
    this.#rowCount[0] = this.#rows;
    this.#rows = 0;
    const status = this.#shim.shim_decode(this.#decode, this.#context, this.#batchPointer);
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
