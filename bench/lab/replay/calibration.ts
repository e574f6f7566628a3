// How far the probabilities of a drafter can be believed.

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
