// Generates a few tokens with weights, in a separate context, to test whether they work. The engine's KV, requests and counts
// stay as they are. It costs some decodes of one row and the memory of a small context.

import { ptr } from "bun:ffi";
import { assert } from "../../core/base/assert.ts";
import { LlamaContext } from "./context.ts";
import { unreadable } from "./files.ts";
import type { LlamaWeights } from "./weights.ts";

/** Tokens of the prompt. They are spread over the vocabulary, so that different rows of the embedding are used. */
const PROMPT_TOKENS = 8;
const OUTPUT_TOKENS = 4;

/** Returns the tokens generated. @throws AppError model_unreadable with the reason; worker_failed: no memory. */
export function generateWith(model: LlamaWeights): number[] {
  const size = model.info.shape.vocabularySize;
  const streamTokens = PROMPT_TOKENS + OUTPUT_TOKENS;
  const context = new LlamaContext(model, { streams: 1, streamTokens, batchRows: PROMPT_TOKENS });
  try {
    const row = new Float32Array(new ArrayBuffer(size * 4));
    const tokens: number[] = [];
    for (let i = 0; i < PROMPT_TOKENS; i += 1) {
      context.add(Math.floor((i * size) / PROMPT_TOKENS), i, 0, i === PROMPT_TOKENS - 1);
    }
    let output = PROMPT_TOKENS - 1;
    for (let made = 0; made < OUTPUT_TOKENS; made += 1) {
      context.decode();
      context.copyLogits(output, ptr(row));
      const token = likeliest(row, model.info.path);
      tokens.push(token);
      if (made + 1 < OUTPUT_TOKENS) output = context.add(token, PROMPT_TOKENS + made, 0, true);
    }
    return tokens;
  } finally {
    context.free();
  }
}

/** The likeliest token. @throws AppError model_unreadable: the logits are not finite numbers. */
function likeliest(row: Float32Array, path: string): number {
  let best = 0;
  let isFlat = true;
  for (let token = 0; token < row.length; token += 1) {
    const logit = row[token] as number;
    if (!Number.isFinite(logit)) {
      const problem = `the logit of token ${token} is ${logit}`;
      throw unreadable(path, `the weights do not generate: ${problem}`);
    }
    if (logit !== row[0]) isFlat = false;
    if (logit > (row[best] as number)) best = token;
  }
  assert(row.length > 0, "a model has a vocabulary");
  if (!isFlat) return best;
  const problem = `the logits of all tokens are ${row[0]}`;
  throw unreadable(path, `the weights do not generate: ${problem}`);
}
