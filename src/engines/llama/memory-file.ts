// An anonymous file in memory (Linux's memfd_create): rewriting or truncating the file that it was copied from does
// not change it. A child process accesses it through an inherited descriptor; it is freed when the last descriptor is
// closed.

import { dlopen, ptr } from "bun:ffi";
import { closeSync } from "node:fs";
import { AppError } from "../../core/base/errors.ts";
import { cString } from "./c-bytes.ts";

/** MFD_CLOEXEC: only a child that is given the descriptor has it. */
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

  /** An empty one. @throws AppError worker_failed: the kernel gives none. */
  static create(): MemoryFile {
    libc ??= openLibc();
    const descriptor = libc.memfd_create(ptr(cString("foretoken-weights")), CLOSE_ON_EXEC);
    if (descriptor < 0) {
      throw new AppError("worker_failed", "the kernel refuses memfd_create: weights need it");
    }
    return new MemoryFile(descriptor);
  }

  /** Opens the same file again, in this process only. */
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

/** Path by which a process opens the file of its own descriptor. */
export function pathOf(descriptor: number): string {
  return `/proc/self/fd/${descriptor}`;
}
