// The tokens that sampling filters left to draw from, read from the alternatives that an engine reports: SkyRL and slime
// train on the distribution over these.

import type { Response } from "../../core/request/response.ts";

/** What vLLM writes for a token that its filters took out. */
const FILTERED_LOGPROB = -9999;

/** At most `widthMax` tokens for the response's token `index`, likeliest first. The drawn token is always there. */
export function supportAt(response: Response, index: number, widthMax: number): number[] {
  const top = response.topLogprobs();
  const drawn = response.tokens()[index] ?? -1;
  const row: number[] = [];
  const count = top?.count ?? 0;
  for (let k = index * count; k < (index + 1) * count && row.length < widthMax; k += 1) {
    const token = top?.tokens[k] ?? -1;
    if (token >= 0 && (top?.logprobs[k] ?? FILTERED_LOGPROB) > FILTERED_LOGPROB) row.push(token);
  }
  // Equal logits at the border, or an engine's approximate filter: as SkyRL's own server does.
  if (!row.includes(drawn)) row[Math.min(row.length, widthMax - 1)] = drawn;
  return row;
}
