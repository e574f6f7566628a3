// The documents against the code: references are those that the tables make, and links lead somewhere.

import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { madeReadme } from "../scripts/gen-readme.ts";
import { staleReferences } from "../scripts/gen-reference.ts";

const ROOT = join(import.meta.dir, "..");

test("references: those of the code, and the table of waits (bun scripts/gen-reference.ts writes them)", async () => {
  expect(await staleReferences()).toEqual([]);
});

/** Headings of a document as GitHub links to them. */
const anchorsOf = (path: string) =>
  [...readFileSync(path, "utf8").matchAll(/^#+ (.*)$/gm)].map(([, heading = ""]) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\w\s-]/g, "")
      .replaceAll(" ", "-"),
  );

test("links: every relative link of a document leads to a file, and to a heading of it", () => {
  const broken: string[] = [];
  const patterns = ["*.md", "docs/**/*.md", "docs/*.txt"];
  const files = patterns.flatMap((pattern) => [...new Bun.Glob(pattern).scanSync(ROOT)]);
  expect(files.length).toBeGreaterThan(15);
  for (const file of files) {
    const text = readFileSync(join(ROOT, file), "utf8");
    for (const [, target = "", anchor = ""] of text.matchAll(/\]\(([^)#\s]*)#?([^)\s]*)\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      const path = target === "" ? join(ROOT, file) : join(ROOT, dirname(file), target);
      const isThere = existsSync(path) && (anchor === "" || anchorsOf(path).includes(anchor));
      if (!isThere) broken.push(`${file}: ${target}#${anchor}`);
    }
  }
  expect(broken).toEqual([]);
});

test("index: docs/README.md names every document", () => {
  const index = readFileSync(join(ROOT, "docs", "README.md"), "utf8");
  const folder = join(ROOT, "docs");
  const all = ["*.md", "reference/*.md"].flatMap((one) => [...new Bun.Glob(one).scanSync(folder)]);
  expect(all.filter((name) => name !== "README.md" && !index.includes(name))).toEqual([]);
});

test("paths: files and folders that a document names exist", () => {
  const all = [...new Bun.Glob("*/**").scanSync({ cwd: ROOT, onlyFiles: false })]
    .filter((path) => !/(^|\/)(node_modules|build|out)(\/|$)/.test(path))
    .map((path) => `/${path}`);
  const roots = new Set(all.map((path) => path.replace(/^\/(src\/)?/, "").split("/")[0]));
  const patterns = ["*.md", "docs/**/*.md", "deploy/*.md", "model/*.md", "examples/**/*.md"];
  const files = patterns.flatMap((pattern) => [...new Bun.Glob(pattern).scanSync(ROOT)]);
  let checked = 0;
  const missing: string[] = [];
  // The changelog names what was; `x` stands for any file.
  for (const file of files.filter((one) => one !== "CHANGELOG.md")) {
    const text = readFileSync(join(ROOT, file), "utf8").replaceAll(/^```.*?^```$/gms, "");
    const words = [...text.matchAll(/`([^`]+)`/g)].flatMap(([, span = ""]) => span.split(/\s+/));
    for (const word of words) {
      const path = /^[\w{},.*/-]*\w\/?$|\*$/.test(word) ? word.replace(/\/$/, "") : "";
      const isOfTheTree = path.includes("/") && roots.has(path.split("/")[0]);
      const isSource = /^(?!x\.)[\w{}*].*\.(ts|py|c|proto|md)$/.test(path);
      if (!isOfTheTree && !isSource) continue;
      checked += 1;
      const glob = new Bun.Glob(`**/${path}`);
      const isThere = (one: string) => one.endsWith(`/${path}`) || glob.match(one);
      if (!all.some(isThere)) missing.push(`${file}: ${word}`);
    }
  }
  expect(missing).toEqual([]);
  expect(checked).toBeGreaterThan(200);
});

test("length: ARCHITECTURE.md has at most 200 lines", () => {
  const lines = readFileSync(join(ROOT, "ARCHITECTURE.md"), "utf8").trimEnd().split("\n");
  expect(lines.length).toBeLessThanOrEqual(200);
});

test("tables: every row stands below a head, without a gap", () => {
  const gaps: string[] = [];
  for (const file of ["*.md", "docs/**/*.md"].flatMap((one) => [
    ...new Bun.Glob(one).scanSync(ROOT),
  ])) {
    const text = readFileSync(join(ROOT, file), "utf8").replaceAll(/^```.*?^```$/gms, "");
    for (const [, row = ""] of text.matchAll(/^(?!\|).*\n(\|.*)\n(?!\| ?---)/gm))
      gaps.push(`${file}: ${row}`);
  }
  expect(gaps).toEqual([]);
});

test("README: its first image is the picture of a run in which all responses were equal, and small", () => {
  const text = readFileSync(join(ROOT, "README.md"), "utf8");
  const [, headline, path = ""] = /!\[(.*?)\]\((.*?)\)/.exec(text) ?? [];
  expect([headline?.slice(0, 22), path]).toEqual(["The same 32 responses:", "docs/start.svg"]);
  expect(readFileSync(join(ROOT, path)).length).toBeLessThan(80_000);
});

test("README: its tables are those of the reports (bun scripts/gen-readme.ts writes them)", () => {
  const text = readFileSync(join(ROOT, "README.md"), "utf8");
  expect(madeReadme(text)).toBe(text);
});
