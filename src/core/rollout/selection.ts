// Which responses of a group are handed out where more run than are wanted: the first to finish (RollPacker's
// over-sampling); how much that prefers short ones; and how old tokens are. It selects; its owner ends the rest.

import type { WeightEpoch } from "../base/ids.ts";
import type { Request } from "../request/buffer.ts";
import { isCut } from "../request/request.ts";
import type { Chunk } from "../request/response.ts";

/** The first `wanted` responses that are complete, in order of their samples. */
export function firstComplete(requests: readonly Request[], wanted: number): Request[] {
  return requests
    .filter(({ response: { finish } }) => finish !== null && !isCut(finish))
    .sort((a, b) => (a.response.finishedMs ?? 0) - (b.response.finishedMs ?? 0))
    .slice(0, wanted)
    .sort((a, b) => a.spec.sampleIndex - b.spec.sampleIndex);
}

/**
 * Mean length of the responses that are handed out over that of all, less one: below 0, long ones are missing. Responses
 * that were given up count with the tokens that they had, so the true bias is no higher. null: there are none.
 */
export function lengthBias(taken: readonly number[], others: readonly number[]): number | null {
  const sum = (lengths: readonly number[]) => lengths.reduce((total, n) => total + n, 0);
  const all = sum(taken) + sum(others);
  if (taken.length === 0 || all === 0) return null;
  return sum(taken) / taken.length / (all / (taken.length + others.length)) - 1;
}

/** Whether a strict response has tokens of weights that are too old in `epoch`. */
export function isStale(
  { isStrict, stalenessMax }: Pick<Request, "isStrict" | "stalenessMax">,
  chunks: readonly Chunk[],
  epoch: WeightEpoch,
): boolean {
  return isStrict && chunks.some((one) => one.tokens > 0 && epoch - one.epoch > stalenessMax);
}
