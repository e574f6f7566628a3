// Speculative decoding on a modelled engine: how many tokens a step yields and verifies. The lengths of drafts are
// decided by draft-budget.ts, the paper's rule; acceptance probabilities come from measurements.

import { assert } from "../../../src/core/base/assert.ts";
import type { StepTimes } from "../../../src/core/draft/draft-length.ts";
import { DRAFT_TOKENS_MAX } from "../../../src/core/draft/drafter.ts";
import type { Speculation } from "../../../src/tools/simulate/engine.ts";
import {
  bestUniformGamma,
  type ClassPlan,
  expectedTokens,
  planDrafts,
  THRESHOLDS,
} from "./draft-budget.ts";
import { interpolated } from "./lengths.ts";
import type { VanillaDraft, Workload } from "./workload.ts";

/**
 * Acceptance of one draft: its tokens are accepted with probability q each, and q differs from draft to draft as
 * Beta(s m, s (1 - m)). s = 1.6 fits drafted and accepted tokens of `foretoken replay` on 80 groups of real
 * traces at four thresholds and 0, 1 and 5 siblings, within 15 % each.
 */
const CONCENTRATION = 1.6;
const NODES = 48;
/** The longest draft that acceptance lengths were published for (gamma_max). */
const PUBLISHED_GAMMA = 8;
/** Host time of a drafter for one request and step: `foretoken replay` prints 0.3 to 0.8 us a token. */
const DRAFT_MS = 0.002;

/** Drafts from the response's own text, or its group's: the quality is the run's. */
export const SUFFIXES: Speculation = {
  plan: (running, times) => {
    if (running.length === 0) return 0;
    const { length: high } = running.filter(({ isUrgent }) => isUrgent);
    const quality = running.reduce((sum, run) => sum + run.quality / running.length, 0);
    const low = running.length - high;
    const plan = planDrafts({ high, low, chances: nodesOf(quality), stepMs: times });
    const isOff = plan.high.tokensMax === 0 && plan.low.tokensMax === 0;
    for (const run of running) {
      const { drafted, accepted } = outcome(run.quality, run.isUrgent ? plan.high : plan.low);
      run.rate = 1 + accepted;
      run.rows = 1 + drafted;
    }
    return isOff ? 0 : DRAFT_MS * running.length;
  },
};

/** A draft model or an extra head, as in the paper's baselines: one length for all, chosen by the throughput model. */
export const draftModel = (options: Extract<VanillaDraft, { kind: "model" }>): Speculation => ({
  plan: (running, times) => {
    const { acceptance: alpha, gammaMax, draftMs } = options;
    const batch = running.length;
    if (batch === 0) return 0;
    const ms: StepTimes["ms"] = (b, rows) => times.ms(b, rows) + draftMs * (rows / b - 1);
    const gamma = bestUniformGamma({ ms }, { batch, alpha, gammaMax });
    for (const run of running) {
      run.rate = expectedTokens(alpha, gamma);
      run.rows = 1 + gamma;
    }
    return draftMs * gamma;
  },
});

/** The quality, in hundredths, whose drafts of eight tokens have a mean acceptance length (1 + accepted) nearest to `length`. */
export function qualityFor(length: number): number {
  const accepted = (low: number) =>
    outcome(low / 100, { tokensMax: PUBLISHED_GAMMA, probabilityMin: 0 }).accepted;
  let low = 0;
  while (low < 98 && 1 + accepted(low) < length) low += 1;
  return low / 100;
}

/** Table 2 of the paper: mean acceptance length of linear drafts from n finished siblings and the own text. */
const REFERENCES = [0, 1, 5, 15];
const LENGTHS = [1.7, 2.04, 2.32, 2.53];

/** Mean acceptance length with `references` siblings; `own`: that of the own text alone. Linear in log(1 + n). */
export function groupedAcceptanceLength(own: number, references: number): number {
  const published = interpolated(REFERENCES.map(Math.log1p), LENGTHS, Math.log1p(references));
  const first = LENGTHS[0] ?? 1;
  return 1 + ((published - 1) * (own - 1)) / (first - 1);
}

/**
 * Mean acceptance length of Foretoken's drafter over that of the path that arctic-inference drafts, at equal drafted
 * tokens, siblings running at the same time: 1.110 and 1.091 on two sets of real traces (docs/DRAFTING.md). The
 * paper's drafts are taken to be such paths. Trees, which accept 3 to 4 % more, are not in it.
 */
export const DRAFTER_GAIN = 1.1;

/** Tokens that a step yields for one request at most: all siblings there, drafts as long as they come, at no cost. */
export function bestTokensPerStep(
  { selfAcceptanceLength, shape }: Pick<Workload, "selfAcceptanceLength" | "shape">,
  gain: number,
): number {
  const length = gain * groupedAcceptanceLength(selfAcceptanceLength, shape.groupSize - 1);
  const plan = { tokensMax: DRAFT_TOKENS_MAX, probabilityMin: 0 };
  return 1 + outcome(qualityFor(length), plan).accepted;
}

const outcomes = new Map<number, { readonly drafted: number; readonly accepted: number }>();

/** Mean tokens drafted and accepted in a step: drafts end at tokensMax, or where the path gets too unlikely. */
function outcome(quality: number, { tokensMax, probabilityMin }: ClassPlan) {
  const threshold = Math.round(probabilityMin * THRESHOLDS);
  const key = (threshold * 64 + tokensMax) * 100 + Math.round(quality * 100);
  return outcomes.getOrInsertComputed(key, () => {
    let drafted = 0;
    let accepted = 0;
    for (const q of nodesOf(quality)) {
      let path = q;
      for (let i = 0; i < tokensMax && path >= probabilityMin && path > 0; i += 1) {
        drafted += 1;
        accepted += path;
        path *= q;
      }
    }
    return { drafted: drafted / NODES, accepted: accepted / NODES };
  });
}

const nodes = new Map<number, Float64Array>();

/** Equally likely values of q at a quality. */
function nodesOf(quality: number): Float64Array {
  return nodes.getOrInsertComputed(Math.round(quality * 100), (hundredths) => {
    assert(hundredths >= 0 && hundredths < 100, "a quality is a share below one");
    return hundredths === 0 ? new Float64Array(NODES) : betaNodes(hundredths / 100);
  });
}

/** Midpoints of NODES equally likely parts of Beta(s m, s (1 - m)), by numerical inversion. */
function betaNodes(mean: number): Float64Array {
  const a = CONCENTRATION * mean;
  const b = CONCENTRATION * (1 - mean);
  const points = 4000;
  const mass = new Float64Array(points);
  let total = 0;
  for (let i = 0; i < points; i += 1) {
    const t = (i + 0.5) / points;
    // q = t^2 (3 - 2 t) tames both ends, where the density has poles.
    const q = t * t * (3 - 2 * t);
    total += q ** (a - 1) * (1 - q) ** (b - 1) * 6 * t * (1 - t);
    mass[i] = total;
  }
  const result = new Float64Array(NODES);
  let at = 0;
  for (let n = 0; n < NODES; n += 1) {
    const wanted = ((n + 0.5) / NODES) * total;
    while (at < points - 1 && (mass[at] ?? 0) < wanted) at += 1;
    const t = (at + 0.5) / points;
    result[n] = t * t * (3 - 2 * t);
  }
  return result;
}
