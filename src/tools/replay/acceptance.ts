// Acceptance by token equality: which of a draft's tokens a recorded response follows, which is what a target model would
// accept with greedy or keyed sampling.

import { assert } from "../../core/base/assert.ts";
import { type Drafts, TREE_TOKENS_MAX } from "../../core/draft/drafter.ts";

/** Depth of each drafted token in the accepted path, from 1 on; 0: not accepted. */
const depth = new Int32Array(TREE_TOKENS_MAX);

/**
 * Length of the longest path in the draft for query `query` that `response` follows from position `at` on. Tokens behind the
 * response's end are not accepted. `judged` is called for every drafted token.
 */
export function acceptedOf(
  drafts: Drafts,
  query: number,
  { response, at }: { readonly response: Int32Array; readonly at: number },
  judged?: (probability: number, isAccepted: boolean) => void,
): number {
  const { tokens, parents, probabilities } = drafts;
  const from = drafts.start[query] ?? 0;
  const count = (drafts.start[query + 1] ?? from) - from;
  assert(count <= TREE_TOKENS_MAX, "a draft has at most TREE_TOKENS_MAX tokens");
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
    judged?.(probabilities[from + j] ?? 0, isAccepted);
  }
  return longest;
}
