// Holds the layer table: which folder of src may import which. CONVENTIONS and ARCHITECTURE.md show the
// same table. Also holds what the layers up to rollout may not name, and a short list of phrases to avoid.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { Glob } from "bun";

const ROOT = resolve(import.meta.dir, "..");
const SRC = join(ROOT, "src");

const BELOW_ROLLOUT = [
  "base",
  "config",
  "wasm",
  "request",
  "context",
  "kv",
  "draft",
  "schedule",
] as const;

const MAY_IMPORT: Record<string, readonly string[]> = {
  base: [],
  config: ["base"],
  wasm: ["base"],
  request: ["base"],
  context: ["base", "request"],
  journal: ["base", "request"],
  kv: ["base", "request"],
  draft: ["base", "request", "wasm"],
  schedule: ["base", "wasm", "request", "context", "kv", "draft"],
  rollout: BELOW_ROLLOUT,
  proto: ["base", "draft"],
  replay: ["base", "request", "wasm", "draft"],
  text: ["base"],
  metrics: [...BELOW_ROLLOUT, "rollout"],
  tracing: [...BELOW_ROLLOUT, "rollout"],
  sim: [...BELOW_ROLLOUT, "rollout", "journal", "worker"],
  worker: [...BELOW_ROLLOUT, "rollout", "proto", "text"],
  server: [...BELOW_ROLLOUT, "rollout", "journal", "proto", "text", "metrics"],
  chaos: ["base", "metrics", "worker", "doctor", "supervise"],
  doctor: ["base", "worker"],
  supervise: ["base", "worker"],
};

/** Time, chance and I/O are passed into these. `src/wasm` reads one file: the core. */
const PURE = [
  "base",
  "config",
  "request",
  "context",
  "journal",
  "kv",
  "draft",
  "schedule",
  "rollout",
  "replay",
];
const IMPURE_NAMES =
  /(?<![#.\w])(Bun\.|fetch\(|new Date|Date\.now|setTimeout|setInterval|performance\.now|process\.|Math\.random)/;

const sources = [...new Glob("**/*.ts").scanSync(SRC)].filter((file) => !file.includes(".test."));

function importsOf(file: string): string[] {
  const text = readFileSync(join(SRC, file), "utf8");
  const found: string[] = [];
  for (const match of text.matchAll(/(?:from|import\()\s*"(\.[^"]+)"/g)) {
    const target = relative(SRC, resolve(SRC, dirname(file), match[1] ?? ""));
    // The core, a schema, the C shim: outside src, and no modules.
    const isAsset = target.startsWith("..") && !target.endsWith(".ts");
    if (!isAsset) found.push(target);
  }
  return found;
}

const folderOf = (file: string): string => (file.includes("/") ? (file.split("/")[0] ?? "") : "");

test("layers: every import goes to a folder that the table allows", () => {
  const wrong: string[] = [];
  for (const file of sources) {
    const folder = folderOf(file);
    const allowed = MAY_IMPORT[folder];
    if (allowed === undefined) continue;
    for (const target of importsOf(file)) {
      const other = folderOf(target);
      if (other !== folder && !allowed.includes(other)) wrong.push(`${file} imports ${target}`);
    }
  }
  expect(wrong).toEqual([]);
});

test("layers: the simulator knows simulated workers only, and only commands know the simulator", () => {
  const wrong: string[] = [];
  for (const file of sources) {
    const folder = folderOf(file);
    for (const target of importsOf(file)) {
      const isOtherWorker = target.startsWith("worker/") && !target.startsWith("worker/simulated/");
      if (folder === "sim" && isOtherWorker) wrong.push(`${file} imports ${target}`);
      if (folder !== "sim" && folder !== "cli" && folderOf(target) === "sim") {
        wrong.push(`${file} imports ${target}`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

test("layers: kinds of worker do not import one another", () => {
  const wrong: string[] = [];
  for (const file of sources) {
    const [folder, kind] = file.split("/");
    if (folder !== "worker") continue;
    for (const target of importsOf(file)) {
      const [otherFolder, otherKind, rest] = target.split("/");
      if (otherFolder === "worker" && rest !== undefined && otherKind !== kind) {
        wrong.push(`${file} imports ${target}`);
      }
    }
  }
  expect(wrong).toEqual([]);
});

test("layers: from base to rollout nothing names a clock, chance, or the outside", () => {
  const wrong: string[] = [];
  for (const file of sources) {
    if (!PURE.includes(folderOf(file))) continue;
    const lines = readFileSync(join(SRC, file), "utf8").split("\n");
    for (const [i, line] of lines.entries()) {
      const code = line.replace(/\/\/.*$/, "").replace(/^\s*\*.*$/, "");
      if (IMPURE_NAMES.test(code)) wrong.push(`${file}:${i + 1}: ${line.trim()}`);
    }
  }
  expect(wrong).toEqual([]);
});

/** Strongly connected components of more than one file (Tarjan 1972), each in alphabetical order. */
function circles(imports: ReadonlyMap<string, readonly string[]>): string[][] {
  const order = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const found: string[][] = [];
  const visit = (file: string): void => {
    const own = order.size;
    order.set(file, own);
    low.set(file, own);
    stack.push(file);
    for (const target of imports.get(file) ?? []) {
      if (!imports.has(target)) continue;
      if (!order.has(target)) visit(target);
      if (stack.includes(target)) {
        low.set(file, Math.min(low.get(file) ?? own, low.get(target) ?? own));
      }
    }
    if (low.get(file) !== own) return;
    const component = stack.splice(stack.indexOf(file));
    if (component.length > 1) found.push(component.sort());
  };
  for (const file of imports.keys()) if (!order.has(file)) visit(file);
  return found;
}

test("circles: files do not import one another, type imports included", () => {
  expect(
    circles(
      new Map([
        ["a", ["b"]],
        ["b", ["c"]],
        ["c", ["a"]],
        ["d", ["a"]],
      ]),
    ),
  ).toEqual([["a", "b", "c"]]);
  expect(circles(new Map(sources.map((file) => [file, importsOf(file)])))).toEqual([]);
});

test("exports: none is there for tests alone, and none that nobody imports", () => {
  const files = [...new Glob("{src,bench,scripts,test}/**/*.ts").scanSync(ROOT)];
  const texts = new Map(files.map((file) => [file, readFileSync(join(ROOT, file), "utf8")]));
  const isTest = (file: string): boolean => file.startsWith("test/") || file.includes(".test.");
  const filesWith = new Map<string, string[]>();
  for (const [file, text] of texts) {
    for (const word of new Set(text.match(/\w+/g))) {
      const found = filesWith.get(word);
      if (found === undefined) filesWith.set(word, [file]);
      else found.push(file);
    }
  }
  const wrong: string[] = [];
  for (const file of sources) {
    // Generated from the core's own list.
    if (file === "wasm/abi.ts") continue;
    const path = `src/${file}`;
    const text = texts.get(path) ?? "";
    const exported = /^export (?:async )?(?:abstract )?(?:function\*?|const|class|let) (\w+)/gm;
    for (const [, name = ""] of text.matchAll(exported)) {
      const users = (filesWith.get(name) ?? []).filter((other) => other !== path);
      const isUsedInside = (text.match(new RegExp(`\\b${name}\\b`, "g"))?.length ?? 0) > 1;
      if (users.length === 0) wrong.push(`${path}: nobody imports ${name}`);
      else if (users.every(isTest) && !isUsedInside) wrong.push(`${path}: only tests use ${name}`);
    }
  }
  expect(wrong).toEqual([]);
});

/** Words that a reader of technical English stumbles over, beside the standard term. */
const PHRASES: readonly (readonly [RegExp, string])[] = [
  [/\bin hand\b/i, "in flight, unfinished"],
  [/\bhear(s|d)? of\b/i, "is notified, gets"],
  [/\b(told of|(is|are|be) told)\b/i, "is called with, gets, is reported"],
  [
    /\b(says how|made up its mind|of one's own|is worth|so many times as|rubbish)\b/i,
    "plain terms",
  ],
  [/\b(has|have) so long\b/i, "time for"],
];

const WRITTEN = [
  "{src,assembly,native,scripts,bench}/**/*.{ts,py,c,html}",
  "{docs,proto}/**/*.{md,proto}",
  "*.md",
];

test("words: sources and documents use standard terms", () => {
  const found: string[] = [];
  const files = WRITTEN.flatMap((pattern) => [...new Glob(pattern).scanSync(ROOT)]);
  expect(files.length).toBeGreaterThan(300);
  for (const file of files) {
    if (/\.test\.|\/tests\/|node_modules/.test(file)) continue;
    for (const [i, line] of readFileSync(join(ROOT, file), "utf8").split("\n").entries()) {
      for (const [phrase, instead] of PHRASES) {
        if (phrase.test(line)) found.push(`${file}:${i + 1}: ${line.trim()} (${instead})`);
      }
    }
  }
  expect(found).toEqual([]);
});
