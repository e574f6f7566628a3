// The three structs of llama.h that are passed by value, as bytes: field offsets of llama.cpp 0.5.0 on 64-bit
// platforms (checked against llama.h with offsetof). The library gives the defaults; only named fields change.

export const MODEL_PARAMS_BYTES = 80;
export const CONTEXT_PARAMS_BYTES = 160;
export const BATCH_BYTES = 56;

const MODEL_LOAD_MODE = 24;
const MODEL_VOCAB_ONLY = 72;
const MODEL_CHECK_TENSORS = 73;
const MODEL_USE_EXTRA_BUFFERS = 74;

/** Loads into private memory. A mapped file would change under the engine if somebody rewrote it. */
const LOAD_MODE_NONE = 0;
const LOAD_MODE_MMAP = 1;

const CONTEXT_N_CTX = 0;
const CONTEXT_N_BATCH = 4;
const CONTEXT_N_UBATCH = 8;
const CONTEXT_N_SEQ_MAX = 12;
const CONTEXT_N_THREADS = 28;
const CONTEXT_N_THREADS_BATCH = 32;
const CONTEXT_FLASH_ATTENTION = 52;
const CONTEXT_NO_PERF = 130;
const CONTEXT_KV_UNIFIED = 133;

/** Word index of each pointer in llama_batch; word 0 holds the row count, word 2 (embeddings) stays 0. */
export const BATCH_WORD = { tokens: 1, positions: 3, streamCounts: 4, streams: 5, outputs: 6 };

/**
 * Rows per graph. With 64 or more query rows of one stream, flash attention would use a tiled kernel that
 * sums in another order, so this bound keeps results independent of how rows are batched.
 */
export const GRAPH_ROWS = 48;

/**
 * `isTrial`: a weight that is not finite is an error. The file is mapped unchanged, and not repacked for the fastest
 * kernels, which takes most of the time and memory of loading.
 */
export function setModelParams(
  params: DataView,
  options: { vocabularyOnly: boolean; isTrial: boolean },
): void {
  const { vocabularyOnly, isTrial } = options;
  params.setInt32(MODEL_LOAD_MODE, isTrial ? LOAD_MODE_MMAP : LOAD_MODE_NONE, true);
  params.setUint8(MODEL_VOCAB_ONLY, vocabularyOnly ? 1 : 0);
  params.setUint8(MODEL_CHECK_TENSORS, isTrial ? 1 : 0);
  if (isTrial) params.setUint8(MODEL_USE_EXTRA_BUFFERS, 0);
}

export function setContextParams(
  params: DataView,
  options: { streams: number; streamTokens: number; batchRows: number },
): void {
  params.setUint32(CONTEXT_N_CTX, options.streams * options.streamTokens, true);
  params.setUint32(CONTEXT_N_BATCH, options.batchRows, true);
  params.setUint32(CONTEXT_N_UBATCH, GRAPH_ROWS, true);
  params.setUint32(CONTEXT_N_SEQ_MAX, options.streams, true);
  // One thread per engine: several engines share the machine, and ggml's threads spin at barriers.
  params.setInt32(CONTEXT_N_THREADS, 1, true);
  params.setInt32(CONTEXT_N_THREADS_BATCH, 1, true);
  params.setInt32(CONTEXT_FLASH_ATTENTION, 1, true);
  params.setUint8(CONTEXT_NO_PERF, 1);
  // Each stream has its own cells, so one request's attention sums do not depend on its neighbours.
  params.setUint8(CONTEXT_KV_UNIFIED, 0);
}
