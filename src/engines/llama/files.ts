// Reads and writes parts of files of weights, and makes the error that names such a file.

import { readSync, writeSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";

export function unreadable(path: string, problem: string, cause?: unknown): AppError {
  return new AppError("model_unreadable", `${path}: ${problem}`, { cause });
}

/** Fills `target`. `path`: the file's name in errors. @throws AppError model_unreadable: the file is too short. */
export function readFully(file: number, target: Uint8Array, offset: number, path: string): void {
  for (let done = 0; done < target.length; ) {
    const read = readSync(file, target, done, target.length - done, offset + done);
    if (read === 0) throw unreadable(path, "is cut short");
    done += read;
  }
}

export function writeFully(file: number, bytes: Uint8Array, offset: number): void {
  for (let done = 0; done < bytes.length; ) {
    done += writeSync(file, bytes, done, bytes.length - done, offset + done);
  }
}
