// Writes RESPONSES.jsonl: a line for every response, all lines of a group at once, when it has finished. A
// group's lines are in the file when `writeGroup` returns, so whatever ends the process later, the
// file holds whole lines of whole groups and nothing else.

import { closeSync, fsyncSync, ftruncateSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { assert } from "../core/base/assert.ts";
import { AppError, errorText } from "../core/base/errors.ts";
import { type FinishedResponse, formatLine } from "../server/rollouts/response-line.ts";

export class ResponseWriter {
  readonly #path: string;
  #file: number | null;
  /** Length of the file up to the last whole group. */
  #bytes = 0;

  /**
   * Creates the file and its folders; an existing file is overwritten.
   * Throws AppError `output_failed`.
   */
  constructor(path: string) {
    this.#path = path;
    try {
      mkdirSync(dirname(path), { recursive: true });
      this.#file = openSync(path, "w");
    } catch (error) {
      throw this.#failure(error);
    }
  }

  /**
   * Appends the lines of one group. On failure, throws AppError `output_failed` and truncates the file to the end of
   * the group before.
   */
  writeGroup(responses: readonly FinishedResponse[]): void {
    assert(this.#file !== null, "a closed writer is not written to");
    const bytes = Buffer.from(responses.map((response) => `${formatLine(response)}\n`).join(""));
    try {
      for (let done = 0; done < bytes.length; ) {
        done += writeSync(this.#file, bytes, done, bytes.length - done);
      }
    } catch (error) {
      this.#takeBack(this.#file);
      throw this.#failure(error);
    }
    this.#bytes += bytes.length;
  }

  /** Makes the file durable and closes it. Safe to call twice. Throws AppError `output_failed`. */
  close(): void {
    if (this.#file === null) return;
    const file = this.#file;
    this.#file = null;
    try {
      syncIfPossible(file);
      closeSync(file);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  #takeBack(file: number): void {
    try {
      ftruncateSync(file, this.#bytes);
    } catch {
      // A pipe or a device cannot be cut; the error that brought us here is the one to tell.
    }
  }

  #failure(error: unknown): AppError {
    const message = `cannot write ${this.#path}: ${errorText(error)}`;
    return new AppError("output_failed", message, { cause: error });
  }
}

function syncIfPossible(file: number): void {
  try {
    fsyncSync(file);
  } catch (error) {
    // Pipes and devices such as /dev/stdout have nothing to make durable.
    const code = error instanceof Error && "code" in error ? error.code : null;
    if (code !== "EINVAL" && code !== "ENOTSUP" && code !== "EROFS") throw error;
  }
}
