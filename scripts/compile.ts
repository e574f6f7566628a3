// Compiles the command-line tool into one executable: the runtime, all modules, the cores, the schemas and the page.
// Files that other programs open by path lie beside it (src/host/installation.ts): the bundled models, and libllama in
// `llama/`.
// `bun scripts/compile.ts --arch x64 --out DIR` writes DIR/foretoken, DIR/model and DIR/llama.

import { copyFileSync, cpSync, existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { Glob } from "bun";
import packageJson from "../package.json" with { type: "json" };
import { PACKAGE_VERSION as LLAMA_VERSION } from "../src/engines/llama/platform.ts";

const root = join(import.meta.dir, "..");

export type Arch = "x64" | "arm64";

/** Names of this architecture in the packages of Bun and of llama.cpp. */
const PACKAGES: Record<Arch, { bun: string; llama: string }> = {
  x64: { bun: "@oven/bun-linux-x64", llama: "linux-x64" },
  arm64: { bun: "@oven/bun-linux-aarch64", llama: "linux-arm64" },
};
/** Needs a newer libstdc++ than the others, and nothing here uses it. */
const UNUSED = /^(libllama-common\.so|llama-addon\.node|_nlcBuildMetadata\.json)$/;
/** Quantised, for the embedded engine; as Hugging Face's files, for `foretoken up`. */
const MODEL_FILES = ["foretoken-3m-q8_0.gguf", "prompts.jsonl", "README.md", "hf"];

/** `new Worker(new URL("./x-thread.ts", import.meta.url))` finds a thread by its file name alone, so names are unique. */
function threads(): string[] {
  const entries = [...new Glob("src/**/*-thread.ts").scanSync(root)].toSorted();
  const names = new Set(entries.map((file) => basename(file)));
  if (names.size !== entries.length) throw new Error(`two threads of one name: ${entries}`);
  return entries;
}

function run(command: string[], cwd = root): void {
  const { exitCode, stderr } = Bun.spawnSync(command, { cwd, stdout: "ignore", stderr: "pipe" });
  if (exitCode !== 0) throw new Error(`${command.join(" ")}: ${stderr.toString()}`);
}

/** The folder of an npm package: the installed one, else the registry's, kept in .cache. */
function packageFolder(name: string, version: string): string {
  const installed = join(root, "node_modules", name);
  if (existsSync(join(installed, "package.json"))) return installed;
  const kept = join(root, ".cache", "packages", `${name.replace(/[@/]+/g, "-")}-${version}`);
  const folder = join(kept, "package");
  if (existsSync(folder)) return folder;
  const fresh = `${kept}.${process.pid}`;
  mkdirSync(fresh, { recursive: true });
  run(["npm", "pack", "--silent", "--pack-destination", fresh, `${name}@${version}`]);
  const [archive = ""] = readdirSync(fresh);
  run(["tar", "-xzf", archive], fresh);
  cpSync(join(fresh, "package"), folder, { recursive: true });
  rmSync(fresh, { recursive: true });
  return folder;
}

function compileProgram(arch: Arch, outfile: string): void {
  const isOwn = arch === process.arch;
  const bun = isOwn
    ? process.execPath
    : join(packageFolder(PACKAGES[arch].bun, packageJson.dependencies.bun), "bin", "bun");
  run([
    process.execPath,
    "build",
    "--compile",
    `--target=bun-linux-${arch}`,
    `--compile-executable-path=${bun}`,
    // The user's folder may hold settings of another program.
    "--no-compile-autoload-dotenv",
    "--no-compile-autoload-bunfig",
    "--entry-naming=[name].[ext]",
    "src/main.ts",
    ...threads(),
    `--outfile=${outfile}`,
  ]);
}

/** Fills `out` with what one installation needs. */
export function compile(arch: Arch, out: string): void {
  rmSync(out, { recursive: true, force: true });
  mkdirSync(join(out, "llama"), { recursive: true });
  compileProgram(arch, join(out, "foretoken"));
  const { llama } = PACKAGES[arch];
  const from = packageFolder(`@node-llama-cpp/${llama}`, LLAMA_VERSION);
  const libraries = join(from, "bins", llama);
  for (const name of readdirSync(libraries)) {
    if (!UNUSED.test(name)) copyFileSync(join(libraries, name), join(out, "llama", name));
  }
  copyFileSync(join(from, "LICENSE"), join(out, "llama", "LICENSE"));
  for (const name of MODEL_FILES) {
    const to = join(out, "model", name);
    mkdirSync(dirname(to), { recursive: true });
    cpSync(join(root, "model", name), to, { recursive: true });
  }
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { arch: { type: "string" }, out: { type: "string" } } });
  const arch = values.arch ?? process.arch;
  if (arch !== "x64" && arch !== "arm64") throw new Error(`--arch is ${arch}: x64 or arm64`);
  compile(arch, values.out ?? join(root, "build", `program-${arch}`));
}
