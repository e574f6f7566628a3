// Files of weights: parts of them are read and written, an error names them, and an anonymous file in memory (Linux's
// memfd_create) has a copy that does not change when the file it was copied from is rewritten or truncated. A child process
// uses it through an inherited descriptor; closing the last descriptor frees it.

import { ptr } from "bun:ffi";
import { closeSync, openSync, readSync, writeSync } from "node:fs";
import { AppError, fileProblem } from "../../core/base/errors.ts";
import { cString, libc } from "./libc.ts";

export function unreadable(path: string, problem: string, cause?: unknown): AppError {
  return new AppError("model_unreadable", `${path}: ${problem}`, { cause });
}

/** Opens a file to be read. @throws AppError model_unreadable. */
export function openToRead(path: string): number {
  try {
    return openSync(path, "r");
  } catch (cause) {
    throw unreadable(path, fileProblem(cause), cause);
  }
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

export interface ByteRange {
  readonly offset: number;
  readonly bytes: number;
}

const COPY_BYTES = 1 << 22;

/** Copies a part of an open file to the same place in another. `name`: of the source in errors. `progress`: after each piece. */
export function copyRange(
  files: { readonly from: number; readonly to: number; readonly name: string },
  { offset, bytes }: ByteRange,
  progress: () => void = () => {},
): void {
  const buffer = new Uint8Array(Math.min(COPY_BYTES, bytes));
  const end = offset + bytes;
  for (let at = offset; at < end; at += buffer.length) {
    const part = buffer.subarray(0, end - at);
    readFully(files.from, part, at, files.name);
    writeFully(files.to, part, at);
    progress();
  }
}

/** MFD_CLOEXEC: a child process has the descriptor only if it is passed explicitly. */
const CLOSE_ON_EXEC = 1;

export class MemoryFile {
  readonly descriptor: number;
  #isClosed = false;

  private constructor(descriptor: number) {
    this.descriptor = descriptor;
  }

  /** Creates an empty file. @throws AppError worker_failed: the kernel refuses. */
  static create(): MemoryFile {
    const descriptor = libc().memfd_create(ptr(cString("foretoken-weights")), CLOSE_ON_EXEC);
    if (descriptor < 0) {
      throw new AppError("worker_failed", "the kernel refuses memfd_create: weights need it");
    }
    return new MemoryFile(descriptor);
  }

  /** Path that opens the same file again, in this process only. */
  get path(): string {
    return pathOf(this.descriptor);
  }

  /** Safe to call twice. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    closeSync(this.descriptor);
  }
}

/** Path by which a process opens the file behind one of its own descriptors. */
export function pathOf(descriptor: number): string {
  return `/proc/self/fd/${descriptor}`;
}
