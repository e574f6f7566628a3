// The test of sampling, on engines whose faults are known: drawn here with a generator of random numbers.

import { expect, test } from "bun:test";
import { uniformAt } from "../base/hash.ts";
import { SamplingTest } from "./sampling-test.ts";

const ALPHA = 1e-6;
const TOKENS = 30;

/** Falling logprobs of a peaked distribution that differs with the position. */
function distribution(position: number, temperature: number): number[] {
  const slope = 0.2 + uniformAt({ hi: 9991, lo: 2 }, position);
  const logits = Array.from({ length: TOKENS }, (_, token) => (-slope * token) / temperature);
  const total = Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit), 0));
  return logits.map((logit) => logit - total);
}

function drawn(logprobs: readonly number[], uniform: number): number {
  let left = uniform;
  for (const logprob of logprobs) {
    left -= Math.exp(logprob);
    if (left < 0) return logprob;
  }
  return logprobs.at(-1) ?? 0;
}

/** An engine that reports temperature 1 and draws at another one. Returns after how many draws it was found out. */
function foundAfter(options: { temperature: number; draws: number; seed: number; top?: number }) {
  const sampling = new SamplingTest(ALPHA);
  for (let i = 0; i < options.draws && !sampling.isRejected; i += 1) {
    const reported = distribution(i, 1);
    const at = distribution(i, options.temperature);
    const place = at.indexOf(drawn(at, uniformAt({ hi: options.seed, lo: 7 }, i)));
    const logprob = reported[place] ?? 0;
    sampling.add({ logprob, top: reported.slice(0, options.top ?? TOKENS) });
  }
  return sampling.isRejected ? sampling.draws : null;
}

test("a sound engine is not rejected, however long one looks", () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    expect(foundAfter({ temperature: 1, draws: 5000, seed })).toBeNull();
  }
});

test("a sound engine that reports only its likeliest tokens is not rejected", () => {
  for (let seed = 1; seed <= 20; seed += 1) {
    expect(foundAfter({ temperature: 1, draws: 5000, seed, top: 3 })).toBeNull();
  }
});

test("an engine that draws too hot or too cold is found, the sooner the worse it is", () => {
  for (const seed of [1, 2, 3]) {
    const found = (temperature: number) =>
      foundAfter({ temperature, draws: 50_000, seed }) ?? Number.POSITIVE_INFINITY;
    expect(found(1.1)).toBeLessThan(50_000);
    expect(found(0.9)).toBeLessThan(50_000);
    expect(found(2)).toBeLessThan(1000);
    expect(found(2)).toBeLessThan(found(1.1));
    expect(found(0.5)).toBeLessThan(found(0.9));
  }
});

test("an engine that draws what it calls impossible is found at once", () => {
  const sampling = new SamplingTest(ALPHA);
  const top = [Math.log(0.98), Math.log(0.01), Math.log(0.005)];
  for (let i = 0; i < 40; i += 1) sampling.add({ logprob: -20, top });
  expect(sampling.isRejected).toBe(true);
});

test("what it could have seen gets finer with the draws", () => {
  const sampling = new SamplingTest(ALPHA);
  const top = [Math.log(0.5), Math.log(0.3), Math.log(0.2)];
  expect(sampling.resolution).toBe(Number.POSITIVE_INFINITY);
  const seen = [100, 400, 1600].map((draws) => {
    while (sampling.draws < draws) sampling.add({ logprob: top[sampling.draws % 3] ?? 0, top });
    return sampling.resolution;
  });
  const [first = 0, second = 0, third = 0] = seen;
  expect(first / second).toBeCloseTo(2, 5);
  expect(second / third).toBeCloseTo(2, 5);
});
