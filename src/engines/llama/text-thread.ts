// A thread that encodes with the vocabulary that the process has open.

import { serveEncoder } from "../../text/encoder.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights, type SharedWeights } from "./weights.ts";

serveEncoder(
  (shared: Pick<SharedWeights, "pointer" | "info">) => new LlamaTokenizer(new LlamaWeights(shared)),
);
