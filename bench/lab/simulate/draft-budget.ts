// How much to draft now, on one engine: the length cap of each priority class from MBA, and the
// acceptance below which one more draft token costs more time than it saves. Off where it does not pay.

import type { StepTimes } from "../../../src/core/draft/draft-length.ts";
import { DRAFT_TOKENS_MAX } from "../../../src/core/draft/drafter.ts";

export interface ClassPlan {
  /** Draft tokens per request; 0: do not draft. */
  readonly tokensMax: number;
  /** Least probability of a token that is verified: that it is accepted, and all before it. */
  readonly probabilityMin: number;
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

/**
 * The plan for a batch of `high` + `low` decoding requests, whose draft tokens are accepted with one of `chances` each,
 * all equally likely.
 *
 * Verifying one more row costs dT; a step yields B tokens in T. The row raises throughput iff its
 * acceptance exceeds dT * B / T (with B and T those of plain decoding: drafts that pay only raise B / T
 * together). The high class, being what the iteration waits for, accepts 1 / lambda of that.
 */
export function planDrafts({
  high,
  low,
  chances,
  stepMs,
}: {
  readonly high: number;
  readonly low: number;
  readonly chances: Float64Array;
  readonly stepMs: StepTimes;
}): { readonly high: ClassPlan; readonly low: ClassPlan } {
  const batch = high + low;
  if (batch === 0) return { high: OFF, low: OFF };
  const acceptanceMin = MARGIN * breakEvenAcceptance(stepMs, batch);
  const { alpha, through } = acceptanceOf(chances, acceptanceMin);
  const gammaUniform = bestUniformGamma(stepMs, { batch, alpha, gammaMax: GAMMA_CAP });
  const lengths = marginalBenefitLengths({
    high,
    low,
    // Tokens below the threshold are never verified, so one that is above it always may be.
    gammaUniform: Math.max(1, gammaUniform),
    acceptance: (position) => through[position] ?? 0,
    gammaMax: GAMMA_CAP,
  });
  const weight = low > 0 ? LAMBDA : 1;
  return {
    high: classPlan(lengths.high, acceptanceMin / weight),
    low: classPlan(lengths.low, acceptanceMin),
  };
}

/** Thresholds are multiples of 1 / 40, so that outcomes can be looked up by them. */
export const THRESHOLDS = 40;

function classPlan(tokensMax: number, threshold: number): ClassPlan {
  if (tokensMax === 0 || threshold > 1) return OFF;
  const probabilityMin = Math.round(threshold * THRESHOLDS) / THRESHOLDS;
  return { tokensMax: Math.min(tokensMax, DRAFT_TOKENS_MAX), probabilityMin };
}

const POSITIONS = GAMMA_CAP + 2;
const paths = new WeakMap<Float64Array, Float64Array>();

/** Powers of the chances, position by position: the same chances come again at each plan. */
const pathsOf = (chances: Float64Array): Float64Array =>
  paths.getOrInsertComputed(chances, ({ length: count }) =>
    Float64Array.from(
      { length: POSITIONS * count },
      (_, at) => (chances[at % count] as number) ** Math.floor(at / count),
    ),
  );

/**
 * The acceptance of the tokens that are likely enough to be verified. alpha: of one when all before it were accepted.
 * through[g]: of the first g together; it never rises.
 */
function acceptanceOf(
  chances: Float64Array,
  probabilityMin: number,
): { readonly alpha: number; readonly through: Float64Array } {
  const through = new Float64Array(POSITIONS);
  const paths = pathsOf(chances);
  let reached = 0;
  let accepted = 0;
  let value = 1;
  for (let position = 1; position < POSITIONS; position += 1) {
    let offered = 0;
    let kept = 0;
    for (let i = 0; i < chances.length; i += 1) {
      const path = paths[position * chances.length + i] as number;
      if (path === 0 || path < probabilityMin) continue;
      offered += 1;
      kept += path;
      reached += path / (chances[i] as number);
    }
    accepted += kept;
    value = offered === 0 ? 0 : Math.min(value, kept / offered);
    through[position] = value;
  }
  return { alpha: reached === 0 ? 0 : accepted / reached, through };
}

/** The break-even acceptance, dT * B / T: at it one more verified row neither gains nor loses. */
export function breakEvenAcceptance(times: StepTimes, batch: number): number {
  const plain = times.ms(batch, batch);
  // The slope over a few rows: a single row is below what a profile resolves.
  const rows = Math.max(2, batch);
  const slope = (times.ms(batch, batch + rows) - plain) / rows;
  return (Math.max(0, slope) * batch) / plain;
}

/** Expected tokens per request and step with `gamma` draft tokens, each accepted with probability alpha. */
export function expectedTokens(alpha: number, gamma: number): number {
  if (alpha >= 1) return gamma + 1;
  return (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

/** The uniform draft length (paper, section 3.4.1), 0..gammaMax, with the least time per token, T_SD(B, gamma); the shorter of equals. */
export function bestUniformGamma(
  times: StepTimes,
  { batch, alpha, gammaMax }: { batch: number; alpha: number; gammaMax: number },
): number {
  let best = 0;
  let bestMs = Number.POSITIVE_INFINITY;
  for (let gamma = 0; gamma <= gammaMax; gamma += 1) {
    const ms = times.ms(batch, batch * (gamma + 1)) / expectedTokens(alpha, gamma);
    if (ms < bestMs) {
      best = gamma;
      bestMs = ms;
    }
  }
  return best;
}

/** A token of the low class goes first if its benefit is this many times that of the high class. */
const LAMBDA = 2;

export interface MbaInput {
  readonly high: number;
  readonly low: number;
  /** gamma*: the best uniform draft length for high + low requests. */
  readonly gammaUniform: number;
  /** acceptance(g): probability that the first g >= 1 draft tokens are all accepted; it never rises. */
  readonly acceptance: (position: number) => number;
  readonly gammaMax: number;
}

/**
 * Marginal-benefit-aware draft lengths (paper, Algorithm 1): hands out the batch's draft tokens to a high and a low class.
 * The printed algorithm calls the *drop* in acceptance, beta[g] - beta[g+1], the benefit of one more position: that
 * favours the class that is about to gain least. Here the benefit is beta[g+1], the tokens that the position adds.
 */
export function marginalBenefitLengths(input: MbaInput): { high: number; low: number } {
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
