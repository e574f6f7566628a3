// Loaded before a program that is watched: writes the size of its heap to a file that another process has mapped.

import { heapStats } from "bun:jsc";

const SAMPLE_MS = 1_000;

const path = process.env.FORETOKEN_SOAK_SAMPLES;
if (path !== undefined) {
  const bytes = Bun.mmap(path, { shared: true });
  const words = new Float64Array(bytes.buffer, bytes.byteOffset, 2);
  setInterval(() => {
    const { heapSize, objectCount } = heapStats();
    words[0] = heapSize;
    words[1] = objectCount;
  }, SAMPLE_MS).unref();
}
