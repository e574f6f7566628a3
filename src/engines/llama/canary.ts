// Generates a few tokens with weights, in a separate context, to test whether they work. The engine's KV, requests and counts
// stay as they are. It costs some decodes of one row and the memory of a small context.

import { LlamaContext } from "./context.ts";
import { unreadable } from "./files.ts";
import { Sampler } from "./sampler.ts";
import type { LlamaWeights } from "./weights.ts";

/** Tokens of the prompt. They are spread over the vocabulary, so that different rows of the embedding are used. */
const PROMPT_TOKENS = 8;
const OUTPUT_TOKENS = 4;

/** @throws AppError model_unreadable with the reason; worker_failed: no memory. */
export function generateWith(model: LlamaWeights): void {
  const size = model.info.shape.vocabularySize;
  const streamTokens = PROMPT_TOKENS + OUTPUT_TOKENS;
  const context = new LlamaContext(model, { streams: 1, streamTokens, batchRows: PROMPT_TOKENS });
  const wrong = (problem: string) =>
    unreadable(model.info.path, `the weights do not generate: the logits ${problem}`);
  try {
    const sampler = new Sampler(size);
    for (let position = 0; position < streamTokens; position += 1) {
      const isPrompt = position < PROMPT_TOKENS;
      const token = isPrompt ? Math.floor((position * size) / PROMPT_TOKENS) : sampler.draw(0, 0);
      const row = context.add(token, position, 0, position >= PROMPT_TOKENS - 1);
      if (position < PROMPT_TOKENS - 1) continue;
      context.decode();
      context.copyLogits(row, sampler.rowPointer);
      const { row: logits } = sampler;
      if (!logits.every(Number.isFinite)) throw wrong("are not numbers");
      if (logits.every((logit) => logit === logits[0]))
        throw wrong(`of all tokens are ${logits[0]}`);
    }
  } finally {
    context.free();
  }
}
