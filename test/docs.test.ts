// The documents against the code: references are those that the tables make, and links lead somewhere.

import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { staleReferences } from "../scripts/gen-reference.ts";

const ROOT = join(import.meta.dir, "..");

test("references: those of the code (bun scripts/gen-reference.ts writes them)", async () => {
  expect(await staleReferences()).toEqual([]);
});

test("links: every relative link of a document leads to a file", () => {
  const broken: string[] = [];
  const patterns = ["*.md", "docs/**/*.md", "docs/*.txt"];
  const files = patterns.flatMap((pattern) => [...new Bun.Glob(pattern).scanSync(ROOT)]);
  expect(files.length).toBeGreaterThan(15);
  for (const file of files) {
    const text = readFileSync(join(ROOT, file), "utf8");
    for (const [, target = ""] of text.matchAll(/\]\(([^)#\s]+)[^)]*\)/g)) {
      if (/^[a-z]+:/.test(target)) continue;
      if (!existsSync(join(ROOT, dirname(file), target))) broken.push(`${file}: ${target}`);
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
