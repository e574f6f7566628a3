// The log of one program: kept from the last run but one, and bounded only by what the program writes in two runs.

import {
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
} from "node:fs";
import { dirname } from "node:path";

/** Opens an empty log to append to; an existing one becomes `PATH.old`. Returns its descriptor. */
export function openLog(path: string): number {
  mkdirSync(dirname(path), { recursive: true });
  if (existsSync(path)) renameSync(path, `${path}.old`);
  return openSync(path, "a");
}

const TAIL_BYTES = 16_384;

/** The last non-empty lines, at most `linesMax`; none if the file cannot be read. */
export function tailOf(path: string, linesMax: number): string[] {
  let file: number;
  try {
    file = openSync(path, "r");
  } catch {
    return [];
  }
  try {
    const { size } = fstatSync(file);
    const bytes = Buffer.alloc(Math.min(size, TAIL_BYTES));
    readSync(file, bytes, 0, bytes.length, size - bytes.length);
    const lines = bytes.toString("utf8").split("\n");
    return lines.filter((line) => line.trim() !== "").slice(-linesMax);
  } finally {
    closeSync(file);
  }
}
