// The throughput model of speculation (paper, section 3.4.1): what a draft of a given length gains
// for a batch on an engine whose step times were measured.

import type { StepTimes } from "../../../src/core/draft/draft-length.ts";

/** Expected tokens per request and step with `gamma` draft tokens, each accepted with probability alpha. */
export function expectedTokens(alpha: number, gamma: number): number {
  if (alpha >= 1) return gamma + 1;
  return (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

/** The uniform draft length, 0..gammaMax, with the least time per token, T_SD(B, gamma); the shorter of equals. */
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
