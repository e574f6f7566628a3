// Writes to disks that may be full or hang, so that nothing waits for a disk without a deadline.

import type { FileHandle } from "node:fs/promises";

/** A write that takes longer counts as failed. */
const DISK_MS_MAX = 10_000;

/** Awaits a disk operation. @throws its own error; Error: it takes too long. */
export async function inTime<T>(operation: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const message = `a write took longer than ${DISK_MS_MAX} ms`;
  const timer = setTimeout(() => late.reject(new Error(message)), DISK_MS_MAX);
  try {
    return await Promise.race([operation, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** Writes all of `bytes`. @throws Error: the disk has not taken all of them. */
export async function writeAt(file: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.byteLength - done, at + done);
    if (bytesWritten === 0) throw new Error("the disk takes nothing");
    done += bytesWritten;
  }
}
