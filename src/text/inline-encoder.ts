// An encoder without a thread, for a process that does nothing else meanwhile.

import { ENCODERS } from "./encoder-job.ts";
import type { Encoder, Text } from "./text.ts";

export function inlineEncoder(text: Text): Encoder {
  return {
    encode: async (texts, options) => ENCODERS.encode(text, { kind: "encode", texts, ...options }),
    encodeChat: async (chat, options) =>
      ENCODERS.chat(text, { kind: "chat", chat, charactersMax: 2 ** 20, ...options }),
    decode: async (tokens) => ENCODERS.decode(text, { kind: "decode", tokens }),
    namesJson: async (tokens) => ENCODERS.names(text, { kind: "names", tokens }),
  };
}
