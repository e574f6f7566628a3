// Bytes of one record that are still arriving, bounded. Both readers cut their input with it.

import { AppError } from "../../core/base/errors.ts";

/**
 * The longest line or group. A response of a million tokens, with its text and logprobs, takes
 * about 30 MB as JSON.
 */
const RECORD_BYTES_MAX = 256 * 1024 * 1024;

export class Pieces {
  #pieces: Uint8Array[] = [];
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  /** Copies nothing: the caller does not reuse `piece`. Throws AppError `invalid_json` beyond the bound. */
  add(piece: Uint8Array, where: string): void {
    if (piece.length === 0) return;
    this.#bytes += piece.length;
    if (this.#bytes > RECORD_BYTES_MAX) {
      throw new AppError("invalid_json", `${where}: is longer than ${RECORD_BYTES_MAX} bytes`);
    }
    this.#pieces.push(piece);
  }

  /** All bytes so far as one array; then it is empty. */
  take(): Uint8Array {
    const [only] = this.#pieces;
    const bytes =
      this.#pieces.length === 1 && only !== undefined ? only : joined(this.#pieces, this.#bytes);
    this.#pieces = [];
    this.#bytes = 0;
    return bytes;
  }
}

function joined(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const all = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
