// Which responses of a group are handed out where more run than are wanted: the first to finish (RollPacker's
// over-sampling); how much that prefers short ones; and how old tokens are. It selects; its owner ends the rest.

import type { WeightEpoch } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import type { Chunk } from "../request/response.ts";

/** The first `wanted` responses that are complete, in order of their samples. */
export function firstComplete(
  requests: readonly RolloutRequest[],
  wanted: number,
): RolloutRequest[] {
  return requests
    .filter(({ response: { finish } }) => finish !== null && finish !== "abort")
    .sort((a, b) => (a.response.finishedMs ?? 0) - (b.response.finishedMs ?? 0))
    .slice(0, wanted)
    .sort((a, b) => a.spec.sampleIndex - b.spec.sampleIndex);
}

/**
 * Mean length of the responses that are handed out over the expected one of all, less one: below 0, long ones are missing.
 * Of a response that was given up it is known that it would have been longer: the expected length is the product-limit
 * estimate (Kaplan and Meier 1958). null: there are none.
 */
export function lengthBias(
  taken: readonly RolloutRequest[],
  others: readonly RolloutRequest[],
): number | null {
  const all = [...taken, ...others].map(({ response: { length, finish } }) => ({
    length,
    isCut: finish === null || finish === "abort",
  }));
  all.sort((a, b) => a.length - b.length || Number(a.isCut) - Number(b.isCut));
  let expected = 0;
  let share = 1;
  let from = 0;
  for (const [i, one] of all.entries()) {
    expected += share * (one.length - from);
    from = one.length;
    if (!one.isCut) share *= 1 - 1 / (all.length - i);
  }
  if (taken.length === 0 || expected === 0) return null;
  const sum = taken.reduce((total, { response }) => total + response.length, 0);
  return sum / taken.length / expected - 1;
}

/** Whether a strict response has chunks, with or without tokens, of weights that are too old in `epoch`. */
export function isStale(
  { isStrict, stalenessMax }: Pick<RolloutRequest, "isStrict" | "stalenessMax">,
  chunks: readonly Chunk[],
  epoch: WeightEpoch,
): boolean {
  return isStrict && chunks.some((one) => epoch - one.epoch > stalenessMax);
}
