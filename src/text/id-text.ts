// The Text port of a model whose tokenizer is not on this machine, or is of a kind that nothing here reads (tiktoken):
// ids pass as they are, and engines make texts of them (server/engine-calls.ts).

import { InvalidFieldError } from "../core/base/errors.ts";
import type { Detokenizer, Text } from "./text.ts";

/** Bound of an unknown vocabulary: token ids are signed 32-bit integers, and engines refuse ids that they do not have. */
export const VOCABULARY_UNKNOWN = 2 ** 31 - 1;

export class IdText implements Text {
  readonly vocabularySize: number;

  constructor(vocabularySize: number = VOCABULARY_UNKNOWN) {
    this.vocabularySize = vocabularySize;
  }

  encode(): Int32Array {
    throw noText();
  }

  /** The names that vLLM gives to tokens for clients that want no text. */
  decode(tokens: ArrayLike<number>): string {
    return Array.from(tokens, nameOf).join(" ");
  }

  detokenizer(): Detokenizer {
    let isFirst = true;
    return {
      push: (tokens) => {
        const names = this.decode(tokens);
        const written = isFirst || names === "" ? names : ` ${names}`;
        isFirst &&= names === "";
        return written;
      },
      flush: () => "",
    };
  }

  bytes(token: number): Uint8Array {
    return new TextEncoder().encode(nameOf(token));
  }

  renderChat(): string {
    throw noText();
  }
}

function nameOf(token: number): string {
  return `token_id:${token}`;
}

function noText(): InvalidFieldError {
  const problem =
    "needs the model's tokenizer.json, which is not on this machine (--tokenizer DIR)";
  return new InvalidFieldError({ where: "request", field: "text", problem });
}
