// Writes RESPONSES.jsonl: a line for every response, all lines of a group at once, when it has finished. A
// group's lines are in the file when `writeGroup` returns, so whatever ends the process later, the
// file holds whole lines of whole groups and nothing else.

import { closeSync, fsyncSync, ftruncateSync, mkdirSync, openSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { assert } from "../base/assert.ts";
import { AppError } from "../base/errors.ts";
import type { WeightEpoch } from "../base/ids.ts";
import type { FinishReason } from "../request/request.ts";
import type { Chunk } from "../request/response.ts";

/** One response, complete. `logprobs[i]` belongs to `tokenIds[i]`. */
export interface FinishedResponse {
  readonly group: string;
  readonly index: number;
  readonly promptTokenIds: Int32Array;
  readonly tokenIds: Int32Array;
  readonly text: string;
  readonly logprobs: Float32Array;
  readonly finishReason: FinishReason;
  readonly weightEpoch: WeightEpoch;
  readonly chunks: readonly Chunk[];
}

export class ResponseWriter {
  readonly #path: string;
  #file: number | null;
  /** Length of the file up to the last whole group. */
  #bytes = 0;

  /**
   * Creates the file, and the folders it stands in; one that is there is begun anew.
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
   * Appends the lines of one group. Throws AppError `output_failed`; what was written of the group is
   * taken back then, so the file still ends with a whole line.
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
    const reason = error instanceof Error ? error.message : String(error);
    return new AppError("output_failed", `cannot write ${this.#path}: ${reason}`, { cause: error });
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

/** One response as a line of JSON, without its line end. */
export function formatLine(response: FinishedResponse): string {
  assert(response.tokenIds.length === response.logprobs.length, "every token has a logprob");
  const chunks = response.chunks.map(({ workerId, offset, tokens }) =>
    JSON.stringify({ worker: workerId, offset, tokens }),
  );
  const logprobs = Array.from(response.logprobs, formatFloat32);
  return [
    `{"group":${JSON.stringify(response.group)}`,
    `"index":${response.index}`,
    `"prompt_token_ids":[${response.promptTokenIds.join(",")}]`,
    `"token_ids":[${response.tokenIds.join(",")}]`,
    `"text":${JSON.stringify(response.text)}`,
    `"logprobs":[${logprobs.join(",")}]`,
    `"finish_reason":${JSON.stringify(response.finishReason)}`,
    `"weight_epoch":${response.weightEpoch}`,
    `"chunks":[${chunks.join(",")}]}`,
  ].join(",");
}

/** 9 significant decimal digits tell any two float32 apart (IEEE 754, 5.12.2); most need 7 or 8. */
const DIGITS_MAX = 9;
const DIGITS_FIRST = 7;

/**
 * The shortest decimal that reads back as the same float32, also through a float64: the file is compared
 * bit for bit by its readers, and "-1.3862944" is half as long as the float64 digits of the same number.
 */
export function formatFloat32(value: number): string {
  assert(Number.isFinite(value), "JSON has no other than finite numbers");
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  let digits = DIGITS_FIRST;
  while (digits < DIGITS_MAX && !readsBack(value, digits)) digits += 1;
  while (digits > 1 && readsBack(value, digits - 1)) digits -= 1;
  assert(readsBack(value, digits), "9 digits are enough for a float32");
  return String(Number(value.toPrecision(digits)));
}

function readsBack(value: number, digits: number): boolean {
  return Math.fround(Number(value.toPrecision(digits))) === value;
}
