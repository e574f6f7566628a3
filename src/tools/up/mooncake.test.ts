import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { findMooncake, segmentMib } from "./mooncake.ts";

const GIB = 2 ** 30;

const python = join(temporaryFolder("python"), "python");

/** The interpreter answers every question with the script's output. */
function answers(script: string): void {
  writeFileSync(python, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
}

test("findMooncake: the package's version and the master beside it", () => {
  answers("echo 0.3.13.post1; echo /site/mooncake");
  expect(findMooncake(python)).toEqual({
    version: "0.3.13.post1",
    master: "/site/mooncake/mooncake_master",
  });
});

test("findMooncake: what is missing is named, with what brings it", () => {
  answers("echo 'ImportError: libibverbs.so.1: cannot open' >&2; exit 1");
  expect(() => findMooncake(python)).toThrow("apt-get install libibverbs1");
  answers(`echo "ModuleNotFoundError: No module named 'mooncake'" >&2; exit 1`);
  expect(() => findMooncake(python)).toThrow("npm run vllm:install");
});

test("segmentMib: what is given; else 1 GiB, or a quarter of what is free for all servers", () => {
  expect(segmentMib(300, { availableBytes: 1, servers: 9 })).toBe(300);
  expect(segmentMib(null, { availableBytes: 64 * GIB, servers: 2 })).toBe(1024);
  expect(segmentMib(null, { availableBytes: 4 * GIB, servers: 2 })).toBe(512);
  expect(segmentMib(null, { availableBytes: GIB / 8, servers: 4 })).toBe(64);
});
