// What the npm package holds, as npm itself lists it.

import { expect, test } from "bun:test";
import { join } from "node:path";
import packageJson from "../package.json" with { type: "json" };

const ROOT = join(import.meta.dir, "..");
const BYTES_MAX = 10 * 1024 * 1024;

interface Listing {
  readonly size: number;
  readonly files: readonly { readonly path: string; readonly mode: number }[];
}

test("npm: the package has all that runs, and no tests", () => {
  const { stdout, exitCode } = Bun.spawnSync(
    ["npm", "pack", "--dry-run", "--json", "--ignore-scripts"],
    { cwd: ROOT, stderr: "ignore" },
  );
  expect(exitCode).toBe(0);
  const [listing] = JSON.parse(stdout.toString()) as Listing[];
  const paths = listing?.files.map(({ path }) => path) ?? [];
  for (const path of [
    "bin/foretoken",
    "build/core.wasm",
    "build/sample.wasm",
    "build/stream/follow-tokens.js",
    "build/stream/follow-tokens.d.ts",
    "src/main.ts",
    "src/server/page/page.html",
    "src/server/page/map.js",
    "proto/draft.proto",
    "native/llama-shim.c",
    "native/foretoken_vllm/src/foretoken_vllm/plugin.py",
    "model/foretoken-3m-q8_0.gguf",
    "model/prompts.jsonl",
  ]) {
    expect(paths).toContain(path);
  }
  expect(paths.filter((path) => /\.test\.ts$|^(test|bench|scripts|docs)\//.test(path))).toEqual([]);
  expect(listing?.size).toBeLessThan(BYTES_MAX);
}, 180_000);

test("npm: no package that it needs refuses Node 20", async () => {
  const lock = await Bun.file(join(ROOT, "package-lock.json")).json();
  const refusing: string[] = [];
  for (const [path, { dev, engines }] of Object.entries<{
    dev?: boolean;
    engines?: { node?: string };
  }>(lock.packages)) {
    const range = engines?.node;
    if (dev || path === "" || range === undefined) continue;
    if (!Bun.semver.satisfies("20.20.2", range)) refusing.push(`${path}: ${range}`);
  }
  expect(refusing).toEqual([]);
  expect(Object.keys(packageJson.dependencies)).not.toContain("assemblyscript");
});
