// Finds the prebuilt libllama for this machine; the error explains how to install it.
// It opens nothing: native.ts does.

import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { AppError } from "../../core/base/errors.ts";
import { IS_COMPILED } from "../../core/base/program.ts";

/** Pinned exactly in package.json: file names have the version in them, and struct layouts depend on it. */
export const PACKAGE_VERSION = "3.22.1";
const LLAMA_LIBRARY = "libllama.v0.5.0.so";
const GGML_LIBRARY = "libggml.v0.5.0.so";

/**
 * The one CPU back end whose results do not depend on how rows are batched, by platform; null: none is known. linux-x64
 * (glibc) is tested; linux-arm64 is listed because its files are laid out alike, and has never been run.
 */
const PORTABLE_BACKENDS: Readonly<Record<string, string | null>> = {
  "linux-x64": "libggml-cpu-x64.so",
  "linux-arm64": null,
};

export interface LibraryFiles {
  readonly folder: string;
  readonly llama: string;
  readonly ggml: string;
  readonly portableBackend: string | null;
}

/** Options for tests: the defaults describe this machine. */
export interface LocateOptions {
  readonly platform?: string;
  readonly arch?: string;
  /** Resolves a package name to the path of its entry file; throws if it is not installed. */
  readonly resolve?: (packageName: string) => string;
  /** The folder of the compiled executable; null: this is none. */
  readonly compiledIn?: string | null;
}

/**
 * Finds the library beside a compiled executable, else in the npm package.
 * @throws AppError native_library_missing, saying what to install.
 */
export function locateLibrary(options: LocateOptions = {}): LibraryFiles {
  const name = `${options.platform ?? process.platform}-${options.arch ?? process.arch}`;
  const backend = PORTABLE_BACKENDS[name];
  if (backend === undefined) {
    const known = Object.keys(PORTABLE_BACKENDS).join(", ");
    const problem = `the embedded engine has no prebuilt llama.cpp for ${name}; it runs on ${known}`;
    throw new AppError("native_library_missing", problem);
  }
  const { compiledIn = COMPILED_IN, resolve = resolveFromHere } = options;
  const packageName = `@node-llama-cpp/${name}`;
  const release = `${packageName}@${PACKAGE_VERSION}`;
  if (compiledIn !== null) {
    const fix = `install the wheel of foretoken, or copy the libraries of ${release} there`;
    return filesIn(join(compiledIn, "llama"), backend, fix);
  }
  const install = `install it with: npm install ${release}`;
  let entry: string;
  try {
    entry = resolve(packageName);
  } catch (cause) {
    throw missing(packageName, install, cause);
  }
  return filesIn(join(dirname(entry), "..", "bins", name), backend, `another version? ${install}`);
}

const COMPILED_IN = IS_COMPILED ? dirname(process.execPath) : null;

function missing(what: string, fix: string, cause?: unknown): AppError {
  const message = `the embedded engine needs ${what}, which is not installed; ${fix}`;
  return new AppError("native_library_missing", message, { cause });
}

/** @throws AppError native_library_missing. */
function filesIn(folder: string, backend: string | null, fix: string): LibraryFiles {
  const llama = join(folder, LLAMA_LIBRARY);
  const ggml = join(folder, GGML_LIBRARY);
  const absent = [llama, ggml].find((file) => !existsSync(file));
  if (absent !== undefined) throw missing(absent, fix);
  return { folder, llama, ggml, portableBackend: backend && join(folder, backend) };
}

function resolveFromHere(packageName: string): string {
  const resolved = import.meta.resolve(packageName);
  return resolved.startsWith("file:") ? fileURLToPath(resolved) : resolved;
}
