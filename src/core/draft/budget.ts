// How much to draft now, on one engine: the length cap of each priority class from MBA, and the
// acceptance below which one more draft token costs more time than it saves. Off where it does not pay.

import { Acceptance } from "./acceptance.ts";
import { DRAFT_TOKENS_MAX } from "./drafter.ts";
import { LAMBDA, marginalBenefitLengths } from "./mba.ts";
import { bestUniformGamma, type StepTimes } from "./throughput.ts";

export interface ClassPlan {
  /** Draft tokens per request; 0: do not draft. */
  readonly tokensMax: number;
  /** Least cumulative probability, as the drafter returns it, of a token that is verified. */
  readonly probabilityMin: number;
  readonly tree: boolean;
  /** How many times as much as a token of the other class one of this class counts, >= 1. */
  readonly weight: number;
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

/** Drafts of a step that gain less than this in all are not verified: step times are not known better. */
const GAIN_MIN = 1.03;
/** Above every weighted probability. */
const NONE_CHOSEN = Number.POSITIVE_INFINITY;

const OFF: ClassPlan = { tokensMax: 0, probabilityMin: 1, tree: false, weight: 1 };

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

  /** See `leastChosen`. */
  choose(weighted: Float32Array, batch: number, times: StepTimes): number {
    return leastChosen(weighted, batch, times);
  }

  #classPlan(tokensMax: number, acceptance: number, weight: number): ClassPlan {
    const acceptanceMin = acceptance / weight;
    const probabilityMin = this.#acceptance.thresholdFor(acceptanceMin);
    if (tokensMax === 0 || probabilityMin > 1) return OFF;
    return {
      tokensMax: Math.min(tokensMax, DRAFT_TOKENS_MAX),
      probabilityMin,
      // Two branches can only both pay where less than half a chance pays.
      tree: acceptanceMin < TREE_ACCEPTANCE_MAX,
      weight,
    };
  }
}

/** Drafts whether it pays or not: to check that drafts change nothing, and to see what the budget saves. */
export class ConstantBudget {
  readonly #plan: ClassPlan = {
    tokensMax: 8,
    probabilityMin: 0.1,
    tree: true,
    weight: 1,
  };

  observe(): void {}

  plan(): DraftPlan {
    return { high: this.#plan, low: this.#plan };
  }

  choose(): number {
    return 0;
  }
}

const BUDGET_NAMES = ["adaptive", "always"] as const;
export type BudgetName = (typeof BUDGET_NAMES)[number];

/** Above this, a second branch at a fork (probability < 1/2) cannot pay for its rows and its KV copy. */
const TREE_ACCEPTANCE_MAX = 0.25;

/**
 * Of all tokens drafted for a step of `batch` requests, the likeliest are verified, as many as make the engine fastest:
 * those whose probability times its class's weight is not below the result. Orders `weighted`. The rule is that of the
 * plugin (native/foretoken_vllm/src/foretoken_vllm/budget.py). A threshold alone takes tokens while each pays at the margin;
 * where the first rows are nearly free, it takes many that do not.
 */
export function leastChosen(weighted: Float32Array, batch: number, times: StepTimes): number {
  weighted.sort();
  let least = NONE_CHOSEN;
  let best = (GAIN_MIN * batch) / times.ms(batch, batch);
  let tokens = batch;
  for (let i = weighted.length - 1; i >= 0; i -= 1) {
    const value = weighted[i] as number;
    tokens += value;
    const speed = tokens / times.ms(batch, batch + weighted.length - i);
    if (speed <= best) continue;
    best = speed;
    least = value;
  }
  return least;
}

/** The break-even acceptance, dT * B / T: at it one more verified row neither gains nor loses. */
export function breakEvenAcceptance(times: StepTimes, batch: number): number {
  const plain = times.ms(batch, batch);
  // The slope over a few rows: a single row is below what a profile resolves.
  const rows = Math.max(2, batch);
  const slope = (times.ms(batch, batch + rows) - plain) / rows;
  return (Math.max(0, slope) * batch) / plain;
}
