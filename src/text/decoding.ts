// From token ids to text by way of bytes: what every implementation of the Text port shares. A token is a
// piece of UTF-8 that need not be whole characters, so text exists only where bytes have met.

import { InvalidFieldError } from "../core/base/errors.ts";
import type { Detokenizer } from "./text.ts";

/** A vocabulary's data about its tokens. */
export interface TokenTable {
  readonly vocabularySize: number;
  /** Special tokens written out; empty where the vocabulary has a hole. `token` is one of its own. */
  pieceOf(token: number): Uint8Array;
  isSpecial(token: number): boolean;
}

/** @throws InvalidFieldError for a token out of vocabulary. */
export function tokenBytes(table: TokenTable, token: number): Uint8Array {
  if (Number.isInteger(token) && token >= 0 && token < table.vocabularySize) {
    return table.pieceOf(token);
  }
  throw new InvalidFieldError({
    where: "decode",
    field: "token",
    problem: `is ${token}, not in 0..${table.vocabularySize - 1}`,
  });
}

/** @throws InvalidFieldError for a token out of vocabulary. */
export function decodeTokens(
  table: TokenTable,
  tokens: ArrayLike<number>,
  options: { skipSpecial: boolean },
): string {
  return newDecoder().decode(joinedBytes(table, tokens, options));
}

export class ByteDetokenizer implements Detokenizer {
  readonly #table: TokenTable;
  readonly #options: { skipSpecial: boolean };
  readonly #decoder = newDecoder();

  constructor(table: TokenTable, options: { skipSpecial: boolean }) {
    this.#table = table;
    this.#options = options;
  }

  push(tokens: ArrayLike<number>): string {
    const bytes = joinedBytes(this.#table, tokens, this.#options);
    return this.#decoder.decode(bytes, { stream: true });
  }

  flush(): string {
    return this.#decoder.decode();
  }
}

function newDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

function joinedBytes(
  table: TokenTable,
  tokens: ArrayLike<number>,
  { skipSpecial }: { skipSpecial: boolean },
): Uint8Array {
  const pieces: Uint8Array[] = [];
  let length = 0;
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i] as number;
    const piece = tokenBytes(table, token);
    if (skipSpecial && table.isSpecial(token)) continue;
    pieces.push(piece);
    length += piece.length;
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}
