// Marginal-benefit-aware draft lengths (paper, Algorithm 1): hands out the batch's draft tokens to a
// high and a low priority class.
//
// The printed algorithm calls the *drop* in acceptance, beta[g] - beta[g+1], the benefit of one more position: that
// favours the class that is about to gain least. Here the benefit is beta[g+1], the tokens that the position adds.

/** A token of the low class goes first if its benefit is this many times that of the high class. */
export const LAMBDA = 2;

export interface MbaInput {
  readonly high: number;
  readonly low: number;
  /** gamma*: the best uniform draft length for high + low requests. */
  readonly gammaUniform: number;
  /** acceptance(g): probability that the first g >= 1 draft tokens are all accepted; it never rises. */
  readonly acceptance: (position: number) => number;
  readonly gammaMax: number;
}

export interface DraftLengths {
  readonly high: number;
  readonly low: number;
}

export function marginalBenefitLengths(input: MbaInput): DraftLengths {
  const { high: nHigh, low: nLow, gammaMax, gammaUniform, acceptance } = input;
  const budget = gammaUniform * (nHigh + nLow);
  if (budget === 0 || budget < nHigh) return { high: 0, low: 0 };
  let high = nHigh > 0 ? 1 : 0;
  let low = 0;
  let left = budget - nHigh;
  for (;;) {
    const canHigh = nHigh > 0 && high < gammaMax && left >= nHigh;
    const canLow = nLow > 0 && low < gammaMax && left >= nLow;
    if (!canHigh && !canLow) return { high, low };
    const isHigh = LAMBDA * nHigh * acceptance(high + 1) >= nLow * acceptance(low + 1);
    if (canHigh && (isHigh || !canLow)) {
      high += 1;
      left -= nHigh;
    } else {
      low += 1;
      left -= nLow;
    }
  }
}
