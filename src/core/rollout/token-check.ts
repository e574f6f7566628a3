// Checks a worker's events of a response: tokens of the model's vocabulary, each with a logprob, no more than requested
// for. Anything else would break what reads it later (text, drafts, another engine's prefill), so that it is refused
// where it comes in, for this one response.

import type { RolloutResponse } from "../request/response.ts";
import type { WorkerEvent } from "./worker.ts";

type Tokens = Omit<Extract<WorkerEvent, { kind: "tokens" }>, "kind" | "requestId">;

/** Describes the first fault of the event; null: there is none. One pass without an allocation. */
export function problemOf(
  event: Tokens,
  response: Pick<RolloutResponse, "length" | "tokensMax"> &
    Partial<Pick<RolloutResponse, "isCounted">>,
  vocabularySize: number,
): string | null {
  const { tokens, logprobs, top, offset } = event;
  if (!(offset >= 0)) return `tokens at offset ${offset}, not 0 or more`;
  if (logprobs.length !== tokens.length) {
    return `${logprobs.length} logprobs with ${tokens.length} tokens`;
  }
  const end = offset + tokens.length;
  if (end > response.tokensMax && offset <= response.length) {
    return `${end} tokens, more than the ${response.tokensMax} that were asked for`;
  }
  if (response.isCounted) return null;
  for (let i = 0; i < tokens.length; i += 1) {
    const token = tokens[i] as number;
    if (token < 0 || token >= vocabularySize) {
      return `token ${token} at position ${offset + i}, not in 0..${vocabularySize - 1}`;
    }
    // -Infinity is a probability of zero, or one that the engine did not report.
    const logprob = logprobs[i] as number;
    if (!(logprob < Number.POSITIVE_INFINITY)) {
      return `logprob ${logprob} at position ${offset + i}, not a finite number or -Infinity`;
    }
  }
  if (top === null) return null;
  if (top.tokens.length !== tokens.length * top.count) {
    return `${top.tokens.length} alternatives with ${tokens.length} tokens, not ${top.count} each`;
  }
  for (let i = 0; i < top.tokens.length; i += 1) {
    const token = top.tokens[i] ?? -1;
    // -1: no alternative.
    if (token < -1 || token >= vocabularySize) {
      return `alternative token ${token}, not in 0..${vocabularySize - 1}`;
    }
  }
  return null;
}
