// A thread that encodes with the vocabulary that the process has open.

import { serveEncoder } from "../../text/encoder.ts";
import { openLibrary } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights, type SharedWeights } from "./weights.ts";

serveEncoder(({ pointer, info }: Pick<SharedWeights, "pointer" | "info">) => {
  return new LlamaTokenizer(LlamaWeights.share(openLibrary(), pointer, info));
});
