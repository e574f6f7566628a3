// Heads whose offsets lie nowhere: refused where they are read, not where a conversion would seek to them.

import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { readGgufHead } from "./gguf.ts";

const folder = temporaryFolder("gguf");

const u32 = (value: number) => Buffer.from(Uint32Array.of(value).buffer);
const u64 = (value: bigint) => Buffer.from(BigUint64Array.of(value).buffer);
const text = (value: string) => Buffer.concat([u64(BigInt(value.length)), Buffer.from(value)]);

/** One value of metadata, and one tensor at `offset`. */
function head(value: readonly Buffer[], offset: bigint): string {
  const path = join(folder, "model.gguf");
  const values = [text("general.alignment"), ...value];
  const tensor = [text("w"), u32(1), u64(1n), u32(0), u64(offset)];
  const counts = [u32(3), u64(1n), u64(1n)];
  const parts = [Buffer.from("GGUF"), ...counts, ...values, ...tensor, Buffer.alloc(64)];
  writeFileSync(path, Buffer.concat(parts));
  return path;
}

const UINT32 = u32(4);

test("gguf: a tensor in the file is read", () => {
  expect(readGgufHead(head([UINT32, u32(32)], 0n)).tensors).toHaveLength(1);
});

test.each([
  [[UINT32, u32(0)], "0, not a whole number from 1 to 65536"],
  [[UINT32, u32(0xffffffff)], "4294967295, not a whole number"],
  [[u32(6), Buffer.from(Float32Array.of(1.5).buffer)], "1.5"],
  [[u32(8), text("x")], "x"],
])("gguf: an alignment that is none is refused by name", (value, named) => {
  expect(() => readGgufHead(head(value, 0n))).toThrow(`its alignment is ${named}`);
});

test.each([1000n, 2n ** 53n, 2n ** 64n - 1n])("gguf: a tensor at byte %p is refused", (offset) => {
  expect(() => readGgufHead(head([UINT32, u32(32)], offset))).toThrow(/tensor w begins at byte \d/);
});
