// Compiles the WebAssembly cores into build/ and writes src/core/wasm/abi.ts, the host's copy of
// assembly/abi.ts. Does nothing when the sources and the compiler are those of the last build.
// Runs before every test and start, and after an installation.

import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import asc from "assemblyscript/asc";
import { buildSample } from "./build-sample.ts";

const root = join(import.meta.dir, "..");
const stampPath = join(root, "build", "core.stamp");

/** Every file that decides what the build writes, in a fixed order. */
function sources(): string[] {
  const files = readdirSync(join(root, "assembly"), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(".ts"))
    .map((file) => join("assembly", file));
  const builders = ["asconfig.json", "scripts/build-core.ts", "scripts/build-sample.ts"];
  return [...files, ...builders, "node_modules/assemblyscript/package.json"].toSorted();
}

function digest(): string {
  const hash = createHash("sha256");
  for (const file of sources()) hash.update(file).update(readFileSync(join(root, file)));
  return hash.digest("hex");
}

function isCurrent(stamp: string): boolean {
  const outputs = ["build/core.wasm", "build/sample.wasm", "src/core/wasm/abi.ts"];
  if (!outputs.every((file) => existsSync(join(root, file)))) return false;
  return existsSync(stampPath) && readFileSync(stampPath, "utf8") === stamp;
}

/** The constants of assembly/abi.ts as a TypeScript module. Throws on a line it does not know. */
export function abiModule(source: string): string {
  const lines = [
    "// Generated from assembly/abi.ts by scripts/build-core.ts; never edited by hand. The host compares",
    "// ABI_VERSION with the core it has loaded.",
    "",
  ];
  for (const line of source.split("\n")) {
    if (line === "" || line.startsWith("//")) continue;
    const match = /^export const ([A-Z0-9_]+): i32 = (-?\d+);$/.exec(line);
    if (match === null) throw new Error(`assembly/abi.ts: not a constant: ${line}`);
    lines.push(`export const ${match[1]} = ${match[2]};`);
  }
  return `${lines.join("\n")}\n`;
}

function writeIfChanged(path: string, text: string): void {
  if (!existsSync(path) || readFileSync(path, "utf8") !== text) writeFileSync(path, text);
}

/** The file appears whole: another process may be loading the old one. */
async function buildCore(): Promise<void> {
  const fresh = `build/core.${process.pid}.wasm`;
  const options = ["--config", "asconfig.json", "--outFile", fresh];
  const { error, stderr } = await asc.main(["assembly/index.ts", ...options]);
  if (error) throw new Error(`core.wasm: ${stderr.toString()}`, { cause: error });
  renameSync(fresh, "build/core.wasm");
}

async function main(): Promise<void> {
  const stamp = digest();
  if (isCurrent(stamp)) return;
  process.chdir(root);
  mkdirSync("build", { recursive: true });
  writeIfChanged("src/core/wasm/abi.ts", abiModule(readFileSync("assembly/abi.ts", "utf8")));
  await buildCore();
  await buildSample();
  writeFileSync(stampPath, stamp);
}

if (import.meta.main) await main();
