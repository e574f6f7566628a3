// Marginal-benefit-aware draft lengths (paper, Algorithm 1): hands out the batch's draft tokens to a
// high and a low priority class.
//
// Two oddities of the printed algorithm are decided here:
// 1. Its "benefit" of one more position is the *drop* in acceptance, beta[g] - beta[g+1], which favours
//    the class that is about to gain least. `benefit: "gain"` uses beta[g+1], the expected accepted
//    tokens that position adds, and is what the engine uses; "drop" is the algorithm as printed.
// 2. beta[0] is undefined while the low class has no draft token. The position before the first is
//    the request's own token, which is always kept: beta[0] = 1.

import { assert } from "../base/assert.ts";

export const LAMBDA = 2;

export interface MbaInput {
  readonly high: number;
  readonly low: number;
  /** gamma*: the best uniform draft length for high + low requests. */
  readonly gammaUniform: number;
  /** acceptance(g): probability that the first g draft tokens are all accepted; acceptance(0) = 1, never rises. */
  readonly acceptance: (position: number) => number;
  readonly gammaMax: number;
  /** How many times the benefit a low-class token must have to go first, >= 1. */
  readonly lambda: number;
  readonly benefit: "gain" | "drop";
}

export interface DraftLengths {
  readonly high: number;
  readonly low: number;
}

const OFF: DraftLengths = { high: 0, low: 0 };

export function marginalBenefitLengths(input: MbaInput): DraftLengths {
  const { high: nHigh, low: nLow, gammaMax, lambda } = input;
  assert(nHigh >= 0 && nLow >= 0 && lambda >= 1, "class sizes and lambda are in range");
  const budget = input.gammaUniform * (nHigh + nLow);
  if (budget === 0 || budget < nHigh) return OFF;
  let gHigh = nHigh > 0 ? 1 : 0;
  let gLow = 0;
  let left = budget - nHigh;
  while (left > 0) {
    const canHigh = nHigh > 0 && gHigh < gammaMax && left >= nHigh;
    const canLow = nLow > 0 && gLow < gammaMax && left >= nLow;
    const benefitHigh = nHigh * benefit(input, gHigh);
    const benefitLow = nLow * benefit(input, gLow);
    const takeHigh =
      input.benefit === "gain"
        ? canHigh && (lambda * benefitHigh >= benefitLow || !canLow)
        : canHigh && benefitHigh > lambda * benefitLow;
    if (takeHigh) {
      gHigh += 1;
      left -= nHigh;
    } else if (canLow) {
      gLow += 1;
      left -= nLow;
    } else {
      break;
    }
  }
  return { high: gHigh, low: gLow };
}

function benefit(input: MbaInput, position: number): number {
  const next = input.acceptance(position + 1);
  return input.benefit === "gain" ? next : input.acceptance(position) - next;
}
