// Golden vectors that the hosts of the core and of the draft protocol share: what went in and what came out here, in
// test/golden/core and test/golden/draft. `bun scripts/gen-golden.ts` writes them; `--check` ends with 1 if any is
// stale. The other host (native/foretoken_vllm) reads them in its tests and must get the same.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { coreVectors } from "../test/golden/core/vectors.ts";
import { draftVectors } from "../test/golden/draft/vectors.ts";

const ROOT = join(import.meta.dir, "..");
const GOLDEN = join(ROOT, "test", "golden");

/** By path: what each file should hold. */
export function goldenFiles(): Map<string, string> {
  const files = new Map<string, string>();
  for (const [name, vector] of Object.entries(coreVectors())) {
    files.set(join(GOLDEN, "core", `${name}.json`), `${JSON.stringify(vector)}\n`);
  }
  files.set(join(GOLDEN, "draft", "frames.json"), `${JSON.stringify(draftVectors(), null, 1)}\n`);
  return files;
}

/** Paths of files that are missing or hold something else. */
export function staleFiles(): string[] {
  const stale: string[] = [];
  for (const [path, text] of goldenFiles()) {
    if (!existsSync(path) || readFileSync(path, "utf8") !== text) stale.push(relative(ROOT, path));
  }
  return stale;
}

if (import.meta.main) {
  const stale = staleFiles();
  if (process.argv.includes("--check")) {
    for (const path of stale) console.error(`${path} is stale: bun scripts/gen-golden.ts`);
    process.exit(stale.length === 0 ? 0 : 1);
  }
  for (const [path, text] of goldenFiles()) {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  }
  console.log(
    stale.length === 0 ? "all golden vectors are current" : `written: ${stale.join(", ")}`,
  );
}
