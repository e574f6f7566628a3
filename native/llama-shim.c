// What bun:ffi cannot call by itself: the functions of llama.h that take or return a struct by value.
// Compiled at start by bun:ffi's cc(), which needs no compiler and no header on the machine, so
// the compiler handles the platform's calling convention. It holds no state: each function is
// given the address of the function to call. The structs are opaque words; src/engines/llama/structs.ts
// knows their fields. Sizes are those of llama.cpp 0.5.0 (libllama.v0.5.0.so), 64-bit platforms.

typedef unsigned long long word;

typedef struct { word words[10]; } model_params;
typedef struct { word words[20]; } context_params;
typedef struct { word words[7]; } batch;

void *memcpy(void *to, const void *from, unsigned long bytes);

void shim_model_default_params(model_params (*call)(void), model_params *out) { *out = call(); }

void shim_context_default_params(context_params (*call)(void), context_params *out) { *out = call(); }

void *shim_model_load(void *(*call)(const char *, model_params), const char *path, model_params *params) {
  return call(path, *params);
}

void *shim_context_create(void *(*call)(void *, context_params), void *model, context_params *params) {
  return call(model, *params);
}

int shim_decode(int (*call)(void *, batch), void *context, batch *rows) { return call(context, *rows); }

// Copies one row of logits out of the library's buffer, which moves as it grows. 0: there is no such row.
int shim_copy_logits(float *(*call)(void *, int), void *context, int index, float *out, int count) {
  float *row = call(context, index);
  if (!row) return 0;
  memcpy(out, row, (unsigned long)count * sizeof(float));
  return 1;
}
