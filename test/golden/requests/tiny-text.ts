// A tiny text for tests: bytes, numbers and one special token.

import { InvalidFieldError } from "../../../src/core/base/errors.ts";
import type { EncoderThread } from "../../../src/text/encoder.ts";
import { ThreadedEncoder } from "../../../src/text/encoder.ts";
import { openThread } from "../../../src/text/job-lane.ts";
import type { Chat, Detokenizer, Text } from "../../../src/text/text.ts";

export const EOS = 1000;
export const VOCABULARY = 1001;
const BYTES = 256;

/** The text of a message, whose parts are on lines of their own. */
function shown(content: unknown): string {
  const parts = Array.isArray(content) ? content : [{ text: content ?? "" }];
  return parts.map(({ text }) => text).join("\n");
}

/** 0..255 are bytes, 256..999 their own number after a blank, 1000 is the special token <eos>. */
export class TinyText implements Text {
  readonly vocabularySize = VOCABULARY;

  bytes(token: number): Uint8Array {
    if (!(token >= 0 && token < VOCABULARY)) {
      const problem = `is ${token}, not in 0..${VOCABULARY - 1}`;
      throw new InvalidFieldError({ where: "text", field: "token", problem });
    }
    if (token < BYTES) return Uint8Array.of(token);
    return new TextEncoder().encode(token === EOS ? "<eos>" : ` ${token}`);
  }

  encode(text: string, options: { addSpecial: boolean }): Int32Array {
    const tokens: number[] = options.addSpecial ? [EOS] : [];
    for (const [i, part] of text.split("<eos>").entries()) {
      if (i > 0) tokens.push(EOS);
      tokens.push(...new TextEncoder().encode(part));
    }
    return Int32Array.from(tokens);
  }

  decode(tokens: ArrayLike<number>, options: { skipSpecial: boolean }): string {
    const detokenizer = this.detokenizer(options);
    return detokenizer.push(tokens) + detokenizer.flush();
  }

  detokenizer({ skipSpecial }: { skipSpecial: boolean }): Detokenizer {
    const decoder = new TextDecoder();
    return {
      push: (tokens) => {
        let text = "";
        for (const token of Array.from(tokens)) {
          if (token === EOS && skipSpecial) continue;
          text += decoder.decode(this.bytes(token), { stream: true });
        }
        return text;
      },
      flush: () => decoder.decode(),
    };
  }

  renderChat(chat: Chat): string {
    const { messages, add_generation_prompt: adds = true } = JSON.parse(chat);
    let text = "";
    for (const { role, content } of messages) text += `[${role}] ${shown(content)}\n`;
    return text + (adds ? "[assistant] " : "");
  }
}

export function openTinyThread(): EncoderThread {
  return openThread(new URL("./tiny-text-thread.ts", import.meta.url), null);
}

export function tinyEncoder(): ThreadedEncoder {
  const limits = { charactersMax: 1_000_000, msMax: 10_000 };
  return new ThreadedEncoder({ text: new TinyText(), openThread: openTinyThread, limits });
}
