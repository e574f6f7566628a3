// Loads build/core.wasm: compiled once a thread, instantiated once for each owner, so that instances
// share nothing. Refuses a core with another ABI than the one this host was built with.

import { readFileSync } from "node:fs";
import CORE from "../../../build/core.wasm" with { type: "file" };
import { AppError } from "../base/errors.ts";
import { ABI_VERSION, CONTEXT_TOKENS_DEFAULT } from "./abi.ts";

/** The core's exports (assembly/index.ts). Handles are positive; statuses are below zero. */
export interface CoreExports {
  readonly memory: WebAssembly.Memory;
  abi_version(): number;
  configure(limitBytes: number, contextTokens: number, learning: number): void;
  used_bytes(): number;
  input_reserve(words: number): number;
  output_reserve(drafts: number): number;
  step(appendRecords: number, draftRecords: number, budget: number): number;
  group_create(): number;
  group_prompt(group: number, tokens: number, count: number): number;
  group_history(group: number, tokens: number, count: number, offset: number): number;
  group_drop(group: number): number;
  group_figures(group: number, to: number): number;
  group_check(group: number): number;
  root_state(group: number): number;
  match_state(group: number, sequence: number): number;
  state_edge(state: number, token: number): number;
  state_count(state: number): number;
  state_best(state: number): number;
  heap_create(): number;
  heap_drop(heap: number): number;
  heap_push(heap: number, id: number, key: number): number;
  heap_pop(heap: number): number;
  heap_peek(heap: number): number;
  heap_update(heap: number, id: number, key: number): number;
  heap_remove(heap: number, id: number): number;
  heap_has(heap: number, id: number): number;
  heap_key(heap: number, id: number): number;
  heap_count(heap: number): number;
  heap_check(heap: number): number;
}

export interface CoreOptions {
  /** Bytes that all groups and heaps of the instance may take; default and most: 3.75 GiB. */
  readonly limitBytes?: number;
  /** Longest context that drafts match, in tokens, >= 1. */
  readonly contextTokens?: number;
  /** Whether probabilities learn from verification feedback; default true. Without it, equal logs give equal drafts. */
  readonly learning?: boolean;
}

/** Bytes that one instance may take. */
export const LIMIT_BYTES_MAX = 0xf0000000;

let compiled: WebAssembly.Module | null = null;

function compile(): WebAssembly.Module {
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = new Uint8Array(readFileSync(CORE));
  } catch (cause) {
    const message = "build/core.wasm is missing; run `npm run build`";
    throw new AppError("core_version", message, { cause });
  }
  return new WebAssembly.Module(bytes);
}

/** Calls that change the instance. */
const CHANGES = [
  "input_reserve",
  "output_reserve",
  "step",
  "group_create",
  "group_prompt",
  "group_history",
  "group_drop",
  "heap_create",
  "heap_push",
  "heap_update",
  "heap_remove",
] as const;

type Call = (a: number, b: number, c: number, d: number) => number;

/**
 * Lets one call at a time change the instance. A call that trapped has left the core's memory half written, so none is let
 * in after it: AppError `core_trap`.
 */
function guarded(exports: CoreExports): CoreExports {
  let inside: string | null = null;
  const calls = CHANGES.map((name) => {
    const call = exports[name] as Call;
    const guard: Call = (a, b, c, d) => {
      if (inside !== null) {
        const message = `core ${name}: refused, since the core is in ${inside} or gave up in it`;
        throw new AppError("core_trap", message);
      }
      inside = name;
      const status = call(a, b, c, d);
      inside = null;
      return status;
    };
    return [name, guard];
  });
  return { ...exports, ...Object.fromEntries(calls) };
}

/** Throws AppError `core_version` if the core is missing or has another ABI. */
export function loadCore(options: CoreOptions = {}): CoreExports {
  compiled ??= compile();
  const instance = new WebAssembly.Instance(compiled, { env: { abort } });
  const core = guarded(instance.exports as unknown as CoreExports);
  const version = core.abi_version();
  if (version !== ABI_VERSION) {
    const message = `build/core.wasm has ABI ${version}, this host ${ABI_VERSION}; run \`npm run build\``;
    throw new AppError("core_version", message);
  }
  const limitBytes = Math.min(options.limitBytes ?? LIMIT_BYTES_MAX, LIMIT_BYTES_MAX);
  const learning = options.learning === false ? 0 : 1;
  core.configure(limitBytes, options.contextTokens ?? CONTEXT_TOKENS_DEFAULT, learning);
  return core;
}

function abort(_message: number, _file: number, line: number, column: number): never {
  throw new AppError("core_trap", `core.wasm gave up at ${line}:${column}`);
}
