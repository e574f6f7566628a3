// An encoder without a thread, for a process that does nothing else meanwhile, on texts of its own user: none is too long.

import { ENCODERS } from "./encoder-job.ts";
import type { Encoder, Text } from "./text.ts";

export function inlineEncoder(text: Text): Encoder {
  const charactersMax = Number.POSITIVE_INFINITY;
  return {
    encode: async (texts, options) => ENCODERS.encode(text, { kind: "encode", texts, ...options }),
    encodeChat: async (chat, options) =>
      ENCODERS.chat(text, { kind: "chat", chat, charactersMax, ...options }),
    decode: async (tokens) => ENCODERS.decode(text, { kind: "decode", tokens }),
    namesJson: async (tokens) => ENCODERS.names(text, { kind: "names", tokens }),
  };
}
