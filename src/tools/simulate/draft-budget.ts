// How much to draft now, on one engine: the length cap of each priority class from MBA, and the
// acceptance below which one more draft token costs more time than it saves. Off where it does not pay.

import type { StepTimes } from "../../core/draft/draft-length.ts";
import { DRAFT_TOKENS_MAX } from "../../core/draft/drafter.ts";
import { Acceptance } from "./acceptance.ts";

import { LAMBDA, marginalBenefitLengths } from "./mba.ts";
import { bestUniformGamma } from "./throughput.ts";

export interface ClassPlan {
  /** Draft tokens per request; 0: do not draft. */
  readonly tokensMax: number;
  /** Least cumulative probability, as the drafter returns it, of a token that is verified. */
  readonly probabilityMin: number;
}

export interface DraftPlan {
  readonly high: ClassPlan;
  readonly low: ClassPlan;
}

/**
 * The paper caps drafts at 8 (gamma_max), with one length for all requests of a class. Here every
 * token is also judged by its own probability, so a longer cap costs nothing where tokens are unlikely.
 */
const GAMMA_CAP = 16;
/**
 * A draft token is verified at this multiple of the break-even acceptance. Measured step times are noisy, and a
 * token near the break-even gains next to nothing: with 1.2 one run in five lost a tenth of its speed.
 */
const MARGIN = 1.4;

const OFF: ClassPlan = { tokensMax: 0, probabilityMin: 1 };

export class DraftBudget {
  readonly #acceptance = new Acceptance(GAMMA_CAP);

  observe(position: number, probability: number, accepted: boolean): void {
    this.#acceptance.observe(position, probability, accepted);
  }

  /**
   * The plan for a batch of `high` + `low` decoding requests.
   *
   * Verifying one more row costs dT; a step yields B tokens in T. The row raises throughput iff its
   * acceptance exceeds dT * B / T (with B and T those of plain decoding: drafts that pay only raise B / T
   * together). The high class, being what the iteration waits for, accepts 1 / lambda of that.
   */
  plan(input: { high: number; low: number; stepMs: StepTimes }): DraftPlan {
    const batch = input.high + input.low;
    if (batch === 0) return { high: OFF, low: OFF };
    const acceptanceMin = MARGIN * breakEvenAcceptance(input.stepMs, batch);
    this.#acceptance.watch(this.#acceptance.thresholdFor(acceptanceMin));
    const gammaUniform = bestUniformGamma(input.stepMs, {
      batch,
      alpha: this.#acceptance.rate,
      gammaMax: GAMMA_CAP,
    });
    const lengths = marginalBenefitLengths({
      high: input.high,
      low: input.low,
      // Tokens below the threshold are never verified, so one that is above it always may be.
      gammaUniform: Math.max(1, gammaUniform),
      acceptance: (position) => this.#acceptance.through(position),
      gammaMax: GAMMA_CAP,
    });
    const weight = input.low > 0 ? LAMBDA : 1;
    return {
      high: this.#classPlan(lengths.high, acceptanceMin, weight),
      low: this.#classPlan(lengths.low, acceptanceMin, 1),
    };
  }

  #classPlan(tokensMax: number, acceptance: number, weight: number): ClassPlan {
    const acceptanceMin = acceptance / weight;
    const probabilityMin = this.#acceptance.thresholdFor(acceptanceMin);
    if (tokensMax === 0 || probabilityMin > 1) return OFF;
    return {
      tokensMax: Math.min(tokensMax, DRAFT_TOKENS_MAX),
      probabilityMin,
    };
  }
}

/** The break-even acceptance, dT * B / T: at it one more verified row neither gains nor loses. */
export function breakEvenAcceptance(times: StepTimes, batch: number): number {
  const plain = times.ms(batch, batch);
  // The slope over a few rows: a single row is below what a profile resolves.
  const rows = Math.max(2, batch);
  const slope = (times.ms(batch, batch + rows) - plain) / rows;
  return (Math.max(0, slope) * batch) / plain;
}
