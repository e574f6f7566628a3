// An anonymous file in memory (Linux's memfd_create). It does not change when the file that it was copied from is rewritten
// or truncated. A child process uses it through an inherited descriptor; closing the last descriptor frees it.

import { dlopen, ptr } from "bun:ffi";
import { closeSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";
import { cString } from "./c-bytes.ts";

/** MFD_CLOEXEC: a child process has the descriptor only if it is passed explicitly. */
const CLOSE_ON_EXEC = 1;

function openLibc() {
  return dlopen("libc.so.6", {
    memfd_create: { args: ["ptr", "u32"], returns: "i32" },
  }).symbols;
}

let libc: ReturnType<typeof openLibc> | null = null;

export class MemoryFile {
  readonly descriptor: number;
  #isClosed = false;

  private constructor(descriptor: number) {
    this.descriptor = descriptor;
  }

  /** Creates an empty file. @throws AppError worker_failed: the kernel refuses. */
  static create(): MemoryFile {
    libc ??= openLibc();
    const descriptor = libc.memfd_create(ptr(cString("foretoken-weights")), CLOSE_ON_EXEC);
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
