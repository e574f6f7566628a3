// From token ids to text by way of bytes: the common part of Text ports that know a vocabulary. A token is
// a piece of UTF-8 that need not be whole characters, so text exists only where bytes have met.

import { InvalidFieldError } from "../core/base/errors.ts";
import type { ChatTemplate } from "./chat-template.ts";
import type { Chat, Detokenizer, Text } from "./text.ts";

const AS_WRITTEN = { skipSpecial: false };

export abstract class VocabularyText implements Text {
  abstract readonly vocabularySize: number;
  protected abstract readonly template: ChatTemplate;
  abstract encode(text: string, options: { addSpecial: boolean }): Int32Array;
  /** The bytes of a token, special ones as text; empty where the vocabulary has a hole. `token` is within the vocabulary. */
  abstract pieceOf(token: number): Uint8Array;
  abstract isSpecial(token: number): boolean;

  decode(tokens: ArrayLike<number>, options: { skipSpecial: boolean } = AS_WRITTEN): string {
    return newDecoder().decode(this.#joined(tokens, options));
  }

  detokenizer(options: { skipSpecial: boolean }): Detokenizer {
    const decoder = newDecoder();
    return {
      push: (tokens) => decoder.decode(this.#joined(tokens, options), { stream: true }),
      flush: () => decoder.decode(),
    };
  }

  bytes(token: number): Uint8Array {
    return this.#known(token).slice();
  }

  get chatProblem(): string | null {
    return this.template.problem;
  }

  renderChat(chat: Chat): string {
    return this.template.render(chat);
  }

  /** @throws InvalidFieldError for a token out of vocabulary. */
  #known(token: number): Uint8Array {
    const size = this.vocabularySize;
    if (Number.isInteger(token) && token >= 0 && token < size) return this.pieceOf(token);
    const problem = `is ${token}, not in 0..${size - 1}`;
    throw new InvalidFieldError({ where: "decode", field: "token", problem });
  }

  #joined(tokens: ArrayLike<number>, { skipSpecial }: { skipSpecial: boolean }): Uint8Array {
    const pieces: Uint8Array[] = [];
    for (let i = 0; i < tokens.length; i += 1) {
      const token = tokens[i] as number;
      const piece = this.#known(token);
      if (!skipSpecial || !this.isSpecial(token)) pieces.push(piece);
    }
    return Buffer.concat(pieces);
  }
}

function newDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}
