// Acceptance by token equality (which of a draft's tokens a recorded response follows: what a target model would accept with
// greedy or keyed sampling), and how far the drafter's probabilities can be believed.

import { assert } from "../../core/base/assert.ts";
import { type Drafts, TREE_TOKENS_MAX } from "../../core/draft/drafter.ts";

/** Width 0.05: narrower bins of a small replay hold too few tokens to mean anything. */
export const BINS = 20;

export interface ReliabilityBin {
  /** Probabilities p with from <= p < to; the last bin has to = 1 and holds p = 1 too. */
  readonly from: number;
  readonly to: number;
  /** Drafted tokens. */
  readonly count: number;
  /** Mean of the probabilities that were returned for them. */
  readonly probability: number;
  /** The share of them that was accepted. */
  readonly accepted: number;
}

export class Calibration {
  readonly #counts = new Float64Array(BINS);
  readonly #probabilities = new Float64Array(BINS);
  readonly #accepted = new Float64Array(BINS);

  /** `probability`: that the path up to and including the token is accepted. */
  add(probability: number, isAccepted: boolean): void {
    const bin = Math.min(BINS - 1, Math.max(0, Math.floor(probability * BINS)));
    this.#counts[bin] = (this.#counts[bin] ?? 0) + 1;
    this.#probabilities[bin] = (this.#probabilities[bin] ?? 0) + probability;
    if (isAccepted) this.#accepted[bin] = (this.#accepted[bin] ?? 0) + 1;
  }

  /** The bins that hold tokens, lowest probability first. */
  bins(): ReliabilityBin[] {
    const bins: ReliabilityBin[] = [];
    for (let i = 0; i < BINS; i += 1) {
      const count = this.#counts[i] ?? 0;
      if (count === 0) continue;
      const probability = (this.#probabilities[i] ?? 0) / count;
      const accepted = (this.#accepted[i] ?? 0) / count;
      bins.push({ from: i / BINS, to: (i + 1) / BINS, count, probability, accepted });
    }
    return bins;
  }

  /**
   * Expected calibration error (Guo et al. 2017, section 2): the mean over drafted tokens of their
   * bin's |probability - accepted|. Null if nothing was drafted.
   */
  error(): number | null {
    let tokens = 0;
    let sum = 0;
    for (const { count, probability, accepted } of this.bins()) {
      tokens += count;
      sum += count * Math.abs(probability - accepted);
    }
    return tokens === 0 ? null : sum / tokens;
  }
}

/** 0: not accepted; otherwise the token's place in the accepted path, from 1 on. */
const depth = new Int32Array(TREE_TOKENS_MAX);

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
    calibration.add(probabilities[from + j] ?? 0, isAccepted);
  }
  return longest;
}
