// Opens libllama in this thread, with typed functions. Pointers are numbers and may be passed between the
// threads of the process. The CPU back end belongs to the process: it is loaded once, portable or fastest,
// and cannot be changed afterwards.

import { CString, cc, dlopen, type Pointer, ptr } from "bun:ffi";
import { writeFileSync } from "node:fs";
import shim from "../../../native/llama-shim.c" with { type: "text" };
import { AppError } from "../../core/base/errors.ts";
import { MemoryFile } from "./files.ts";
import { cString } from "./libc.ts";
import { type LibraryFiles, locateLibrary } from "./platform.ts";

function openGgml(file: string) {
  return dlopen(file, {
    ggml_backend_load: { args: ["ptr"], returns: "ptr" },
    ggml_backend_load_all_from_path: { args: ["ptr"], returns: "void" },
    // Of libggml-base, which the library needs; they abort the process at a type that does not exist.
    ggml_type_name: { args: ["i32"], returns: "ptr" },
    ggml_quantize_requires_imatrix: { args: ["i32"], returns: "bool" },
    ggml_quantize_chunk: {
      args: ["i32", "ptr", "ptr", "i64", "i64", "i64", "ptr"],
      returns: "u64",
    },
    gguf_init_from_file: { args: ["ptr", "u64", "ptr"], returns: "ptr" },
    gguf_free: { args: ["ptr"], returns: "void" },
    gguf_get_data_offset: { args: ["ptr"], returns: "u64" },
    gguf_get_n_tensors: { args: ["ptr"], returns: "i64" },
    gguf_get_tensor_name: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_tensor_ne: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_tensor_type: { args: ["ptr", "i64"], returns: "i32" },
    gguf_get_tensor_offset: { args: ["ptr", "i64"], returns: "u64" },
    gguf_get_tensor_size: { args: ["ptr", "i64"], returns: "u64" },
    gguf_get_n_kv: { args: ["ptr"], returns: "i64" },
    gguf_get_key: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_kv_type: { args: ["ptr", "i64"], returns: "i32" },
    gguf_get_val_str: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_val_data: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_arr_n: { args: ["ptr", "i64"], returns: "u64" },
    gguf_get_arr_type: { args: ["ptr", "i64"], returns: "i32" },
    gguf_get_arr_data: { args: ["ptr", "i64"], returns: "ptr" },
    gguf_get_arr_str: { args: ["ptr", "i64", "u64"], returns: "ptr" },
  });
}

function openLlama(file: string) {
  return dlopen(file, {
    llama_backend_init: { args: [], returns: "void" },
    llama_log_set: { args: ["ptr", "ptr"], returns: "void" },
    llama_time_us: { args: [], returns: "i64" },
    llama_model_default_params: { args: ["ptr"], returns: "void" },
    llama_context_default_params: { args: ["ptr"], returns: "void" },
    llama_model_load_from_file: { args: ["ptr", "ptr"], returns: "ptr" },
    llama_init_from_model: { args: ["ptr", "ptr"], returns: "ptr" },
    llama_decode: { args: ["ptr", "ptr"], returns: "i32" },
    llama_get_logits_ith: { args: ["ptr", "i32"], returns: "ptr" },
    llama_free: { args: ["ptr"], returns: "void" },
    llama_model_free: { args: ["ptr"], returns: "void" },
    llama_model_get_vocab: { args: ["ptr"], returns: "ptr" },
    llama_model_n_ctx_train: { args: ["ptr"], returns: "i32" },
    llama_model_n_embd: { args: ["ptr"], returns: "i32" },
    llama_model_n_layer: { args: ["ptr"], returns: "i32" },
    llama_model_n_head_kv: { args: ["ptr"], returns: "i32" },
    llama_model_is_recurrent: { args: ["ptr"], returns: "bool" },
    llama_model_is_hybrid: { args: ["ptr"], returns: "bool" },
    llama_model_has_encoder: { args: ["ptr"], returns: "bool" },
    llama_model_meta_val_str: { args: ["ptr", "ptr", "ptr", "u64"], returns: "i32" },
    llama_vocab_n_tokens: { args: ["ptr"], returns: "i32" },
    llama_vocab_bos: { args: ["ptr"], returns: "i32" },
    llama_vocab_eos: { args: ["ptr"], returns: "i32" },
    llama_vocab_is_eog: { args: ["ptr", "i32"], returns: "bool" },
    llama_vocab_type: { args: ["ptr"], returns: "i32" },
    llama_tokenize: {
      args: ["ptr", "ptr", "i32", "ptr", "i32", "bool", "bool"],
      returns: "i32",
    },
    llama_token_to_piece: { args: ["ptr", "i32", "ptr", "i32", "i32", "bool"], returns: "i32" },
    llama_get_memory: { args: ["ptr"], returns: "ptr" },
    llama_memory_seq_rm: { args: ["ptr", "i32", "i32", "i32"], returns: "bool" },
    llama_state_seq_get_size: { args: ["ptr", "i32"], returns: "u64" },
    llama_state_seq_get_data: { args: ["ptr", "ptr", "u64", "i32"], returns: "u64" },
    llama_state_seq_set_data: { args: ["ptr", "ptr", "u64", "i32"], returns: "u64" },
  });
}

/** Compiles the shim from a memory file: the compiler cannot open files inside a compiled executable. */
function compileShim() {
  const source = MemoryFile.create();
  try {
    writeFileSync(source.path, shim);
    return cc({
      source: source.path,
      // What the linker would look for is in a C compiler's package; memcpy is the process's own.
      flags: "-nostdlib",
      symbols: {
        shim_model_load: { args: ["ptr", "ptr", "ptr", "bool", "bool"], returns: "ptr" },
        shim_context_create: {
          args: ["ptr", "ptr", "ptr", "i32", "i32", "i32", "i32"],
          returns: "ptr",
        },
        shim_decode: { args: ["ptr", "ptr", "i32", "i32", "ptr", "ptr", "ptr"], returns: "i32" },
        shim_copy_logits: { args: ["ptr", "ptr", "i32", "ptr", "i32"], returns: "i32" },
      },
    });
  } finally {
    source.close();
  }
}

export type GgmlSymbols = ReturnType<typeof openGgml>["symbols"];

/** libllama and the shim, as opened in one thread. */
interface LlamaLibrary {
  readonly llama: ReturnType<typeof openLlama>["symbols"];
  readonly ggml: GgmlSymbols;
  readonly shim: ReturnType<typeof compileShim>["symbols"];
  readonly files: LibraryFiles;
}

/** Address of a function of the library, for the shim to call. */
export function addressOf(symbol: object): Pointer {
  const address = Reflect.get(symbol, "ptr");
  if (typeof address !== "number") throw new TypeError("not a native function");
  return address as Pointer;
}

/** A pointer the library returned, or null. */
export function pointerOf(value: Pointer | bigint | null): Pointer | null {
  return value === null ? null : (Number(value) as Pointer);
}

/** A string of the library; empty: there is none. */
export function ptrText(value: Pointer | bigint | null): string {
  const pointer = pointerOf(value);
  return pointer === null ? "" : new CString(pointer).toString();
}

let opened: LlamaLibrary | null = null;

/**
 * Opens the library in this thread, with its log silenced. It needs no back end yet.
 * @throws AppError native_library_missing.
 */
export function openLibrary(): LlamaLibrary {
  if (opened !== null) return opened;
  const files = locateLibrary();
  try {
    const llama = openLlama(files.llama).symbols;
    // A log callback in JavaScript would be called from foreign threads; this function of the library
    // ignores its arguments and has no effect, which is all that silence needs.
    llama.llama_log_set(addressOf(llama.llama_time_us), null);
    const ggml = openGgml(files.ggml).symbols;
    const shim = compileShim().symbols;
    opened = { llama, ggml, shim, files };
    return opened;
  } catch (cause) {
    const problem = `cannot open ${files.llama}: ${String(cause)}`;
    throw new AppError("native_library_missing", problem, { cause });
  }
}

/** Turns the library's log on: it writes to the process's standard error. */
export function speakUp(): void {
  openLibrary().llama.llama_log_set(null, null);
}

let backend: "portable" | "fastest" | null = null;

/**
 * Loads the CPU back end of the process; call it on the main thread before any worker thread starts.
 * @throws AppError native_library_missing when it cannot be loaded, invalid_config when the process
 * already has the other one.
 */
export function loadBackend(options: { deterministic: boolean }): void {
  const kind = options.deterministic ? "portable" : "fastest";
  if (backend === kind) return;
  if (backend !== null) {
    const problem = `runs the ${backend} llama.cpp kernels and cannot change to the ${kind} ones`;
    throw new AppError("invalid_config", `this process ${problem}`);
  }
  const { ggml, llama, files } = openLibrary();
  if (kind === "fastest") {
    ggml.ggml_backend_load_all_from_path(ptr(cString(files.folder)));
  } else {
    const file = files.portableBackend;
    if (file === null || ggml.ggml_backend_load(ptr(cString(file))) === null) {
      const kernels = `the portable llama.cpp kernels (${file ?? "none for this platform"})`;
      const problem = `deterministic runs need ${kernels}, which cannot be loaded`;
      throw new AppError("native_library_missing", problem);
    }
  }
  llama.llama_backend_init();
  backend = kind;
}
