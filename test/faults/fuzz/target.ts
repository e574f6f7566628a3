// What the fuzzer runs: a parser that takes bytes from outside, with a generator of inputs for it. A target holds its
// parser to three promises: it answers or refuses (AppError), it ends, and the next input is taken as if the last one
// had not been.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AppError, type ErrorCode } from "../../../src/core/base/errors.ts";
import type { Inputs } from "./generator.ts";

export interface FuzzBed<T> {
  readonly inputs: Inputs<T>;
  /** Inputs that are taken at the same time. Default: 1. */
  readonly width?: number;
  /** Throws where the parser did not do what it promises. */
  take(input: T): void | Promise<void>;
  close(): void | Promise<void>;
}

export interface FuzzTarget {
  readonly name: string;
  open(): Promise<FuzzBed<unknown>>;
}

export function target<T>(name: string, open: () => FuzzBed<T> | Promise<FuzzBed<T>>): FuzzTarget {
  // A bed is given inputs of its own generator only.
  return { name, open: async () => (await open()) as FuzzBed<unknown> };
}

/** A target of one function, which has nothing to open. */
export function parser<T>(
  name: string,
  inputs: Inputs<T>,
  take: (input: T) => void | Promise<void>,
): FuzzTarget {
  return target(name, () => ({ inputs, take, close: () => {} }));
}

/** Runs a parser that may refuse its input. Returns what it read; null: refused. @throws whatever else it throws. */
export async function readOrRefused<R>(
  codes: readonly ErrorCode[],
  read: () => R | Promise<R>,
): Promise<R | null> {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof AppError) || !codes.includes(error.code)) throw error;
    if (error.message.length > MESSAGE_CHARACTERS_MAX) {
      throw new Error(`a message of ${error.message.length} characters`, { cause: error });
    }
    return null;
  }
}

/** A message repeats at most a part of its input. */
const MESSAGE_CHARACTERS_MAX = 20_000;

/** Files in memory, as far as the machine has such a folder. */
const FOLDER = process.platform === "linux" ? "/dev/shm" : tmpdir();

/** A target whose parser takes the path of a file. `ending`: of its name. `codes`: with which it may be refused. */
export function fileTarget<T extends Uint8Array | readonly Uint8Array[]>(
  name: string,
  inputs: Inputs<T>,
  given: {
    ending: string;
    codes: readonly ErrorCode[];
    read: (path: string, bytes: Uint8Array) => unknown;
  },
): FuzzTarget {
  const { ending, codes, read } = given;
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
