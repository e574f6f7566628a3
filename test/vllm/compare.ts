// Whether responses that came through the sidecar are what plain vLLM would have made: in distribution.

import { SamplingTest } from "../../src/core/rollout/sampling-test.ts";
import type { Engine } from "../../src/tools/doctor/engine.ts";

/** The chance that a test fails on responses that are right: for each use of `heldAgainst` and of `pairedT`. */
export const ALPHA = 1e-6;

export interface Written {
  readonly prompt: readonly number[];
  readonly tokens: readonly number[];
  readonly logprobs: readonly number[];
}

export interface Held {
  readonly test: SamplingTest;
  /** Mean distance of the logprobs that came with the tokens from those of the finished text, nats. */
  readonly distance: number;
}

const TOP = 20;
const CONCURRENCY = 16;

/**
 * Has a plain server score finished responses, from output token `from` on, and tests whether the tokens are draws from
 * its distributions (src/core/rollout/sampling-test.ts).
 */
export async function heldAgainst(
  engine: Engine,
  responses: readonly (Written & { readonly from?: number })[],
): Promise<Held> {
  const test = new SamplingTest(ALPHA);
  let distance = 0;
  const left = [...responses];
  const work = async () => {
    for (let next = left.pop(); next !== undefined; next = left.pop()) {
      const { prompt, tokens, logprobs, from = 0 } = next;
      const scored = await engine.score([...prompt, ...tokens], prompt.length + from, TOP);
      if (scored === null) throw new Error("the server does not score a finished text");
      for (const [index, logprob] of scored.logprobs.entries()) {
        test.add({ logprob, top: (scored.top[index] ?? []).slice(0, TOP - 1) });
        distance += Math.abs(logprob - (logprobs[from + index] ?? Number.NaN));
      }
    }
  };
  await Promise.all(Array.from({ length: CONCURRENCY }, work));
  return { test, distance: distance / Math.max(1, test.draws) };
}

/** Student's t of the differences of pairs: 0 if they are the same on average. */
export function pairedT(pairs: readonly (readonly [number, number])[]): number {
  const differences = pairs.map(([a, b]) => a - b);
  const mean = differences.reduce((sum, d) => sum + d, 0) / differences.length;
  const square = differences.reduce((sum, d) => sum + (d - mean) ** 2, 0);
  return mean / Math.sqrt(square / (differences.length - 1) / differences.length);
}

/** Critical value of Student's t with 15 degrees of freedom: |t| is larger with a probability of 1e-6. */
export const T15_MAX = 7.7;

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
