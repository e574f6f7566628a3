// Writes empty shared libraries in place of CUDA's, so that PyTorch's CUDA build imports and computes on a machine
// without a GPU and without 3.4 GB of libraries that would never run. Every function in them answers "no device".
// Which libraries, symbols and symbol versions are wanted is read from PyTorch's own files.

import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** cudaErrorNoDevice (CUDA runtime API): PyTorch finds no devices and continues. */
const NO_DEVICE = 100;
/** Functions that return text, which callers read. */
const TEXT_FUNCTION = /(ErrorString|ErrorName|StatusString|StatusName)$/;
/** libcuda.so.1 is the driver's: only code that is not loaded without a GPU needs it. */
const CUDA_LIBRARY = /^lib(cu(?!da\.)|nv|nccl)/;
/** Symbols of CUDA; others without a version come from Python and the C++ library, and must still do so. */
const CUDA_SYMBOL = /^_*(cu|nv|nccl)/;

interface Wanted {
  /** Library to version of its symbols to the symbols; "" is no version. */
  readonly versioned: Map<string, Map<string, Set<string>>>;
  readonly libraries: Set<string>;
}

/**
 * `folder`: torch/lib. Returns the libraries written there.
 * @throws Error: readelf or gcc failed; the message contains their output.
 */
export function writeStubs(folder: string): string[] {
  const files = readdirSync(folder).filter((name) => /\.so(\.|$)/.test(name));
  const wanted = wantedBy(files.map((name) => join(folder, name)));
  const missing = [...wanted.libraries].filter((name) => !files.includes(name)).toSorted();
  const scratch = mkdtempSync(join(tmpdir(), "foretoken-stubs-"));
  try {
    for (const library of missing) {
      const versions = wanted.versioned.get(library) ?? new Map<string, Set<string>>();
      const source = join(scratch, "stub.c");
      const script = join(scratch, "stub.map");
      writeFileSync(source, sourceOf(new Set([...versions.values()].flatMap((set) => [...set]))));
      writeFileSync(script, scriptOf(versions));
      const named = [...versions.keys()].some((version) => version !== "");
      const versioning = named ? [`-Wl,--version-script=${script}`] : [];
      const output = join(folder, library);
      run([
        "gcc",
        "-shared",
        "-fPIC",
        "-w",
        `-Wl,-soname,${library}`,
        ...versioning,
        "-o",
        output,
        source,
      ]);
    }
  } finally {
    rmSync(scratch, { recursive: true });
  }
  return missing;
}

function wantedBy(files: readonly string[]): Wanted {
  const wanted: Wanted = { versioned: new Map(), libraries: new Set() };
  const defined = new Set<string>();
  const unversioned = new Set<string>();
  for (const file of files) {
    for (const [, name = ""] of run(["readelf", "-dW", file]).matchAll(/\(NEEDED\).*\[(.+)\]/g)) {
      if (CUDA_LIBRARY.test(name)) wanted.libraries.add(name);
    }
    const libraryOf = versionFiles(run(["readelf", "-VW", file]));
    for (const line of run(["readelf", "--dyn-syms", "-W", file]).split("\n")) {
      const [, , , type, binding, , section, symbol] = line.trim().split(/\s+/);
      if (symbol === undefined || section === undefined || type === "SECTION") continue;
      const [name = "", version = ""] = symbol.split(/@+/);
      if (section !== "UND") defined.add(name);
      else if (binding === "WEAK" || (version === "" && !CUDA_SYMBOL.test(name))) continue;
      else if (version === "") unversioned.add(name);
      else add(wanted, { library: libraryOf.get(version) ?? version, version, name });
    }
  }
  // A symbol without a version is found in whichever library is loaded; every part of PyTorch loads this one.
  const [runtime] = [...wanted.libraries].filter((name) => name.startsWith("libcudart."));
  for (const name of unversioned) {
    if (runtime !== undefined && !defined.has(name)) {
      add(wanted, { library: runtime, version: "", name });
    }
  }
  return wanted;
}

function add(wanted: Wanted, found: { library: string; version: string; name: string }): void {
  const versions = wanted.versioned.get(found.library) ?? new Map<string, Set<string>>();
  const names = versions.get(found.version) ?? new Set<string>();
  wanted.versioned.set(found.library, versions.set(found.version, names.add(found.name)));
}

/** Symbol version to the library that has it. */
function versionFiles(text: string): Map<string, string> {
  const files = new Map<string, string>();
  let file = "";
  for (const line of text.split("\n")) {
    file = /\bFile: (\S+)/.exec(line)?.[1] ?? file;
    const version = /\bName: (\S+)\s+Flags/.exec(line)?.[1];
    if (version !== undefined) files.set(version, file);
  }
  return files;
}

function sourceOf(names: ReadonlySet<string>): string {
  const functions = [...names]
    .toSorted()
    .map((name) =>
      TEXT_FUNCTION.test(name)
        ? `const char *${name}(void) { return "there is no CUDA here"; }`
        : `long ${name}(void) { return ${NO_DEVICE}; }`,
    );
  return `${functions.join("\n")}\n`;
}

function scriptOf(versions: ReadonlyMap<string, ReadonlySet<string>>): string {
  return [...versions]
    .filter(([version]) => version !== "")
    .map(([version, names]) => `${version} { global: ${[...names].join("; ")}; };\n`)
    .join("");
}

function run(command: string[]): string {
  const { exitCode, stdout, stderr } = Bun.spawnSync(command, { stdout: "pipe", stderr: "pipe" });
  if (exitCode === 0) return stdout.toString();
  throw new Error(`${command[0]} ended with ${exitCode}: ${stderr.toString().trim().slice(-500)}`);
}
