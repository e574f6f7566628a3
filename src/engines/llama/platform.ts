// Finds the prebuilt libllama for this machine; the error explains how to install it.
// It opens nothing: native.ts does.

import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { AppError } from "../../core/base/errors.ts";
import { IS_COMPILED } from "../../core/base/program.ts";

interface Platform {
  readonly packageName: string;
  /** Folder of the libraries within the package. */
  readonly folder: string;
  /** The one CPU back end whose results do not depend on how rows are batched; null: none is known. */
  readonly portableBackend: string | null;
}

/** Pinned exactly in package.json: file names have the version in them, and struct layouts depend on it. */
export const PACKAGE_VERSION = "3.22.1";
const LLAMA_LIBRARY = "libllama.v0.5.0.so";
const GGML_LIBRARY = "libggml.v0.5.0.so";

/**
 * Packages with the same library layout. linux-x64 (glibc) is tested; linux-arm64 is listed because
 * its files are laid out alike, and has never been run.
 */
const PLATFORMS: Readonly<Record<string, Platform>> = {
  "linux-x64": {
    packageName: "@node-llama-cpp/linux-x64",
    folder: "linux-x64",
    portableBackend: "libggml-cpu-x64.so",
  },
  "linux-arm64": {
    packageName: "@node-llama-cpp/linux-arm64",
    folder: "linux-arm64",
    portableBackend: null,
  },
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
  const platform = PLATFORMS[name];
  if (platform === undefined) {
    throw new AppError(
      "native_library_missing",
      `the embedded engine has no prebuilt llama.cpp for ${name}; it runs on ${Object.keys(PLATFORMS).join(", ")}`,
    );
  }
  const { compiledIn = COMPILED_IN, resolve = resolveFromHere } = options;
  const install = `install it with: npm install ${platform.packageName}@${PACKAGE_VERSION}`;
  if (compiledIn !== null) {
    const fix = `install the wheel of foretoken, or copy the libraries of ${platform.packageName}@${PACKAGE_VERSION} there`;
    return checked(filesIn(join(compiledIn, "llama"), platform), fix);
  }
  let entry: string;
  try {
    entry = resolve(platform.packageName);
  } catch (cause) {
    throw missing(platform.packageName, install, cause);
  }
  const folder = join(dirname(entry), "..", "bins", platform.folder);
  return checked(filesIn(folder, platform), `another version? ${install}`);
}

const COMPILED_IN = IS_COMPILED ? dirname(process.execPath) : null;

function missing(what: string, fix: string, cause?: unknown): AppError {
  const message = `the embedded engine needs ${what}, which is not installed; ${fix}`;
  return new AppError("native_library_missing", message, { cause });
}

/** @throws AppError native_library_missing. */
function checked(files: LibraryFiles, fix: string): LibraryFiles {
  const absent = [files.llama, files.ggml].find((file) => !existsSync(file));
  if (absent !== undefined) throw missing(absent, fix);
  return files;
}

function filesIn(folder: string, { portableBackend }: Platform): LibraryFiles {
  return {
    folder,
    llama: join(folder, LLAMA_LIBRARY),
    ggml: join(folder, GGML_LIBRARY),
    portableBackend: portableBackend === null ? null : join(folder, portableBackend),
  };
}

function resolveFromHere(packageName: string): string {
  const resolved = import.meta.resolve(packageName);
  return resolved.startsWith("file:") ? fileURLToPath(resolved) : resolved;
}
