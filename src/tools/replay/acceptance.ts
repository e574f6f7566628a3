// Acceptance by token equality: which of a draft's tokens a recorded response follows. With greedy or
// keyed sampling it is what a target model would accept; it decides nothing else.

import { assert } from "../../core/base/assert.ts";
import { DRAFT_TOKENS_MAX, type Drafts } from "../../core/draft/drafter.ts";
import type { Calibration } from "./calibration.ts";

/** 0: not accepted; otherwise the token's place in the accepted path, from 1 on. */
const depth = new Int32Array(DRAFT_TOKENS_MAX);

/**
 * Length of the longest path of the draft of query number `query` that `response` follows from `at` on. A token behind the
 * response's end is not accepted. Adds every drafted token to `calibration`.
 */
export function acceptedOf(
  drafts: Drafts,
  query: number,
  response: Int32Array,
  at: number,
  calibration: Calibration,
): number {
  const { tokens, parents, probabilities } = drafts;
  const from = drafts.start[query] ?? 0;
  const count = (drafts.start[query + 1] ?? from) - from;
  assert(count <= DRAFT_TOKENS_MAX, "a draft has at most DRAFT_TOKENS_MAX tokens");
  let longest = 0;
  for (let j = 0; j < count; j += 1) {
    const parent = parents[from + j] ?? -1;
    assert(parent < j, "parents precede children");
    const before = parent < 0 ? 0 : (depth[parent] ?? 0);
    const follows = parent < 0 || before > 0;
    const position = at + before;
    const isAccepted =
      follows && position < response.length && response[position] === tokens[from + j];
    depth[j] = isAccepted ? before + 1 : 0;
    if (isAccepted && before + 1 > longest) longest = before + 1;
    calibration.add(probabilities[from + j] ?? 0, isAccepted);
  }
  return longest;
}
