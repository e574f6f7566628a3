// What bun:ffi cannot call by itself: the functions of llama.h that take or return a struct by value.
// Compiled at start by bun:ffi's cc(), which needs no compiler and no header on the machine, so
// the compiler handles the platform's calling convention. It holds no state: each function is
// given the addresses of the functions to call. Of the structs it knows only the fields that it sets, at their offsets in
// llama.cpp 0.5.0 (libllama.v0.5.0.so) on 64-bit platforms, checked against llama.h with offsetof.

typedef unsigned long long word;

typedef struct { word words[10]; } model_params;
typedef struct { word words[20]; } context_params;

typedef struct {
  int rows;
  int *tokens;
  float *embeddings;
  int *positions;
  int *stream_counts;
  int **streams;
  signed char *outputs;
} batch;

void *memcpy(void *to, const void *from, unsigned long bytes);

static void set_int(void *params, int offset, int value) { *(int *)((char *)params + offset) = value; }

static void set_bool(void *params, int offset, int value) { *((char *)params + offset) = value != 0; }

enum { LOAD_MODE_NONE = 0, LOAD_MODE_MMAP = 1 };

// A trial refuses weights that are not finite. It maps the file unchanged, and does not repack it for the fastest kernels,
// which takes most of the time and memory of loading. Otherwise weights are in private memory: a mapped file would change
// under the engine if somebody rewrote it.
void *shim_model_load(
    model_params (*defaults)(void), void *(*load)(const char *, model_params), const char *path, int is_vocabulary, int is_trial) {
  model_params params = defaults();
  set_int(&params, 24, is_trial ? LOAD_MODE_MMAP : LOAD_MODE_NONE);
  set_bool(&params, 72, is_vocabulary);
  set_bool(&params, 73, is_trial); // check_tensors
  if (is_trial) set_bool(&params, 74, 0); // use_extra_bufts
  return load(path, params);
}

// One thread for each context: several engines share the machine, and ggml's threads spin at barriers. Each stream has its
// own cells, so that a request's attention sums do not depend on its neighbours.
void *shim_context_create(
    context_params (*defaults)(void), void *(*create)(void *, context_params), void *model, int streams, int stream_tokens,
    int batch_rows, int graph_rows) {
  context_params params = defaults();
  set_int(&params, 0, streams * stream_tokens); // n_ctx
  set_int(&params, 4, batch_rows); // n_batch
  set_int(&params, 8, graph_rows); // n_ubatch
  set_int(&params, 12, streams); // n_seq_max
  set_int(&params, 28, 1); // n_threads
  set_int(&params, 32, 1); // n_threads_batch
  set_int(&params, 52, 1); // flash_attn_type
  set_bool(&params, 130, 1); // no_perf
  set_bool(&params, 133, 0); // kv_unified
  return create(model, params);
}

// `columns` has four of `capacity` numbers each, for tokens, positions, streams and the streams of each row, which are one;
// `addresses` has room for those of the streams.
int shim_decode(
    int (*decode)(void *, batch), void *context, int rows, int capacity, int *columns, signed char *outputs, int **addresses) {
  int *streams = columns + 2 * capacity;
  int *counts = columns + 3 * capacity;
  for (int row = 0; row < rows; row++) {
    addresses[row] = streams + row;
    counts[row] = 1;
  }
  batch of_rows = {rows, columns, 0, columns + capacity, counts, addresses, outputs};
  return decode(context, of_rows);
}

// Copies one row of logits out of the library's buffer, which moves as it grows. 0: there is no such row.
int shim_copy_logits(float *(*call)(void *, int), void *context, int index, float *out, int count) {
  float *row = call(context, index);
  if (!row) return 0;
  memcpy(out, row, (unsigned long)count * sizeof(float));
  return 1;
}
