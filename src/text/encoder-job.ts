// Jobs of a tokenizer's thread: their requests, execution and answers. The same functions run where no thread is
// needed.

import { AppError } from "../core/base/errors.ts";
import { type JobThread, serveJobs } from "./job-lane.ts";
import type { Chat, EncodedChat, Text } from "./text.ts";

export type EncoderJob =
  | {
      readonly kind: "encode";
      readonly texts: readonly string[];
      readonly addSpecial: boolean;
      /** Limit of tokens: a text that certainly has more is refused before it is encoded; null: there is none. */
      readonly tokensMax: number | null;
    }
  | {
      readonly kind: "chat";
      readonly chat: Chat;
      readonly addSpecial: boolean;
      readonly tokensMax: number | null;
      /** Limit of the text that the template makes, in characters. */
      readonly charactersMax: number;
    }
  | { readonly kind: "decode"; readonly tokens: Int32Array }
  | { readonly kind: "names"; readonly tokens: Int32Array };

type JobOf<K extends EncoderJob["kind"]> = Extract<EncoderJob, { kind: K }>;

interface Results {
  encode: Int32Array[];
  chat: EncodedChat;
  decode: string;
  /** JSON list of the tokens' texts. */
  names: string;
}

export type ResultOf<J extends EncoderJob> = Results[J["kind"]];

export type EncoderThread = JobThread<EncoderJob>;

/** Serves a tokenizer's thread: `open` makes the Text from the opening message. */
export function serveEncoder<Opening>(open: (opening: Opening) => Text): void {
  serveJobs((opening: Opening) => {
    const text = open(opening);
    return (job: EncoderJob) => ENCODERS[job.kind](text, job as never);
  });
}

export const ENCODERS: {
  readonly [K in EncoderJob["kind"]]: (text: Text, job: JobOf<K>) => Results[K];
} = {
  encode: (text, { texts, addSpecial, tokensMax }) =>
    texts.map((one) => {
      checkRoom(text, one, tokensMax);
      return text.encode(one, { addSpecial });
    }),
  chat: (text, { chat, addSpecial, tokensMax, charactersMax }) => {
    const written = text.renderChat(chat);
    if (written.length > charactersMax) {
      const message = `the chat template makes a text of ${written.length} characters, beyond the server's ${charactersMax}`;
      throw new AppError("context_length_exceeded", message);
    }
    checkRoom(text, written, tokensMax);
    return { text: written, tokens: text.encode(written, { addSpecial }) };
  },
  decode: (text, { tokens }) => text.decode(tokens, { skipSpecial: false }),
  names: (text, { tokens }) => {
    const decoder = new TextDecoder();
    return JSON.stringify(Array.from(tokens, (token) => decoder.decode(text.bytes(token))));
  },
};

/**
 * Refuses a text that is too long: it has at least as many tokens as its length divided by that of the longest token. (A
 * tokenizer that first drops characters could make fewer; vLLM judges alike.)
 */
function checkRoom(text: Text, written: string, tokensMax: number | null): void {
  if (tokensMax === null || written.length <= tokensMax) return;
  const tokensMin = Math.ceil(written.length / longestToken(text));
  if (tokensMin <= tokensMax) return;
  const most = `This model's maximum context length is ${tokensMax} tokens`;
  const least = `${written.length} characters, which are at least ${tokensMin} input tokens`;
  const message = `${most}. However, your prompt contains ${least}. Please reduce the length of the input prompt.`;
  throw new AppError("context_length_exceeded", message);
}

const longest = new WeakMap<Text, number>();

/** Length of the longest token in bytes, an upper bound of its characters. */
function longestToken(text: Text): number {
  return longest.getOrInsertComputed(text, () => {
    let bytes = 1;
    for (let token = 0; token < text.vocabularySize; token += 1) {
      bytes = Math.max(bytes, text.bytes(token).length);
    }
    return bytes;
  });
}
