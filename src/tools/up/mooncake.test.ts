import { expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findMooncake, segmentMib } from "./mooncake.ts";

const GIB = 2 ** 30;

/** An interpreter that answers every question with the script's output. */
function python(script: string): { path: string; remove: () => void } {
  const folder = mkdtempSync(join(tmpdir(), "foretoken-python-"));
  const path = join(folder, "python");
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  return { path, remove: () => rmSync(folder, { recursive: true }) };
}

test("findMooncake: the package's version and the master beside it", () => {
  const { path, remove } = python("echo 0.3.13.post1; echo /site/mooncake");
  expect(findMooncake(path)).toEqual({
    version: "0.3.13.post1",
    master: "/site/mooncake/mooncake_master",
  });
  remove();
});

test("findMooncake: what is missing is named, with what brings it", () => {
  const library = python("echo 'ImportError: libibverbs.so.1: cannot open' >&2; exit 1");
  expect(() => findMooncake(library.path)).toThrow("apt-get install libibverbs1");
  library.remove();
  const wheel = python(`echo "ModuleNotFoundError: No module named 'mooncake'" >&2; exit 1`);
  expect(() => findMooncake(wheel.path)).toThrow("npm run vllm:install");
  wheel.remove();
});

test("segmentMib: what is given; else 1 GiB, or a quarter of what is free for all servers", () => {
  expect(segmentMib(300, { availableBytes: 1, servers: 9 })).toBe(300);
  expect(segmentMib(null, { availableBytes: 64 * GIB, servers: 2 })).toBe(1024);
  expect(segmentMib(null, { availableBytes: 4 * GIB, servers: 2 })).toBe(512);
  expect(segmentMib(null, { availableBytes: GIB / 8, servers: 4 })).toBe(64);
});
