// Whether a path can be read as weights, before anything reads it: a FIFO, a socket or a device would hold its reader
// for ever, and so would a network file system that does not answer. It opens nothing.

import type { Stats } from "node:fs";
import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { AppError } from "../../base/errors.ts";

/** For all looks at one path together, ms: a file system that takes longer will not read gigabytes either. */
const LOOK_MS_MAX = 10_000;

/** Off the event loop. @throws AppError model_unreadable naming the path. */
export async function checkWeightsPath(path: string, msMax = LOOK_MS_MAX): Promise<void> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => {
    reject(unreadable(path, `its file system does not answer within ${msMax / 1000} s`));
  }, msMax);
  try {
    await Promise.race([look(path), late]);
  } finally {
    clearTimeout(timer);
  }
}

async function look(path: string): Promise<void> {
  const found = await seen(path);
  if (found.isFile()) return;
  if (!found.isDirectory()) throw notAFile(path, found);
  // The files that a folder of weights is read from.
  for (const name of await readdir(path)) {
    if (!/\.(safetensors|json|gguf)$/.test(name)) continue;
    const inside = join(path, name);
    const entry = await seen(inside);
    if (!entry.isFile() && !entry.isDirectory()) throw notAFile(inside, entry);
  }
}

async function seen(path: string): Promise<Stats> {
  try {
    return await stat(path);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new AppError("model_unreadable", `${path}: ${reason}`, { cause });
  }
}

function notAFile(path: string, found: Stats): AppError {
  const kind = found.isFIFO()
    ? "a FIFO"
    : found.isSocket()
      ? "a socket"
      : found.isCharacterDevice() || found.isBlockDevice()
        ? "a device"
        : "neither";
  return unreadable(path, `is ${kind}, not a file or a folder`);
}

function unreadable(path: string, problem: string): AppError {
  return new AppError("model_unreadable", `${path}: ${problem}`);
}
