// Targets whose parsers take the path of a file.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ErrorCode } from "../../../src/core/base/errors.ts";
import type { Inputs } from "./generator.ts";
import { type FuzzTarget, readOrRefused, target } from "./target.ts";

/** Files in memory, as far as the machine has such a folder. */
const FOLDER = process.platform === "linux" ? "/dev/shm" : tmpdir();

/** `ending`: of the file's name. `codes`: with which it may be refused. */
export function fileTarget<T extends Uint8Array | readonly Uint8Array[]>(
  name: string,
  inputs: Inputs<T>,
  {
    ending,
    codes,
    read,
  }: {
    ending: string;
    codes: readonly ErrorCode[];
    read: (path: string, bytes: Uint8Array) => unknown;
  },
): FuzzTarget {
  return target(name, () => {
    const folder = mkdtempSync(join(FOLDER, "foretoken-fuzz-"));
    const path = join(folder, `input${ending}`);
    return {
      inputs,
      take: async (input: T) => {
        const bytes = input instanceof Uint8Array ? input : joined(input);
        writeFileSync(path, bytes);
        await readOrRefused(codes, () => read(path, bytes));
      },
      close: () => rmSync(folder, { recursive: true, force: true }),
    };
  });
}

export function joined(parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}
