// Writes to disks that may be full or hang: nothing waits for one without an end.

import type { FileHandle } from "node:fs/promises";

/** A write that takes longer counts as failed. */
const DISK_MS_MAX = 10_000;

/** @throws what `act` throws; Error: it takes too long. */
export async function inTime<T>(act: Promise<T>): Promise<T> {
  const late = Promise.withResolvers<never>();
  const message = `a write took longer than ${DISK_MS_MAX} ms`;
  const timer = setTimeout(() => late.reject(new Error(message)), DISK_MS_MAX);
  try {
    return await Promise.race([act, late.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** @throws Error: the disk has not taken all of it. */
export async function writeAt(file: FileHandle, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    const { bytesWritten } = await file.write(bytes, done, bytes.byteLength - done, at + done);
    if (bytesWritten === 0) throw new Error("the disk takes nothing");
    done += bytesWritten;
  }
}
