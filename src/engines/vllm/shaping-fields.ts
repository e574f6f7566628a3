// The shaping of a response as fields of one chunk's request: vLLM and SGLang have the same names but one. Neutral values
// are left out, which saves the servers work.

import type { ChunkRequest } from "./dialect.ts";

export function shapingFields(
  { spec, offset, tokensMax }: ChunkRequest,
  tokensMinName: "min_tokens" | "min_new_tokens",
): Record<string, unknown> {
  const { shaping } = spec.sampling;
  if (shaping === null) return {};
  const fields: Record<string, unknown> = {};
  const tokensMin = Math.min(Math.max(0, shaping.tokensMin - offset), tokensMax);
  if (tokensMin > 0) fields[tokensMinName] = tokensMin;
  if (shaping.topK > 0) fields.top_k = shaping.topK;
  if (shaping.topP < 1) fields.top_p = shaping.topP;
  if (shaping.minP > 0) fields.min_p = shaping.minP;
  if (shaping.repetitionPenalty !== 1) fields.repetition_penalty = shaping.repetitionPenalty;
  if (shaping.presencePenalty !== 0) fields.presence_penalty = shaping.presencePenalty;
  if (shaping.frequencyPenalty !== 0) fields.frequency_penalty = shaping.frequencyPenalty;
  if (shaping.logitBias.length > 0) {
    fields.logit_bias = Object.fromEntries(
      shaping.logitBias.map(({ token, bias }) => [String(token), bias]),
    );
  }
  return fields;
}
