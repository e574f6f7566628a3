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

type Drawing = { reported: number; temperature: number; draws: number; top?: number };

/** After how many draws an engine was found that reports one temperature and draws at another. null: it was not. */
function foundAfter({ reported, temperature, draws, top }: Drawing, seed: number, alpha = ALPHA) {
  const sampling = new SamplingTest(alpha);
  for (let i = 0; i < draws && !sampling.isRejected; i += 1) {
    const told = distribution(i, reported).map(Math.fround);
    const at = distribution(i, temperature);
    const place = at.indexOf(drawn(at, uniformAt({ hi: seed, lo: 7 }, i)));
    sampling.add({ logprob: told[place] ?? 0, top: told.slice(0, top) });
  }
  return sampling.isRejected ? sampling.draws : null;
}

test("a sound engine is not rejected, from one likely token to many equal ones, and whatever part it reports", () => {
  for (let seed = 0; seed < 60; seed += 1) {
    const temperature = [0.03, 1, 1e9][seed % 3] ?? 1;
    const sound = { reported: temperature, temperature, draws: 5000, top: seed < 30 ? TOKENS : 3 };
    expect(foundAfter(sound, seed)).toBeNull();
  }
});

test("of sound engines no more are rejected than asked", () => {
  const sound = { reported: 1, temperature: 1, draws: 300, top: 3 };
  const found = Array.from({ length: 500 }, (_, seed) => foundAfter(sound, seed, 0.2) ?? 0);
  expect(found.filter((draws) => draws > 0).length).toBeLessThan(100);
});

test("an engine that draws too hot or too cold is found, the sooner the worse it is", () => {
  for (const seed of [1, 2, 3]) {
    const found = (temperature: number) =>
      foundAfter({ reported: 1, temperature, draws: 50_000 }, seed) ?? Number.POSITIVE_INFINITY;
    expect(found(1.1)).toBeLessThan(50_000);
    expect(found(0.9)).toBeLessThan(50_000);
    expect(found(2)).toBeLessThan(1000);
    expect(found(2)).toBeLessThan(found(1.1));
    expect(found(0.5)).toBeLessThan(found(0.9));
  }
});

test("an engine that draws what it calls impossible is found at once", () => {
  // vLLM gives -9999 to every token where its logits are no numbers: no draw is possible there.
  for (const top of [[0.98, 0.01, 0.005].map(Math.log), [-9999, -9999, -9999]]) {
    const sampling = new SamplingTest(ALPHA);
    for (let i = 0; i < 40; i += 1) sampling.add({ logprob: Math.min(-20, top[2] ?? 0), top });
    expect(sampling.isRejected).toBe(true);
  }
});

test("a row that is not full says nothing on the tokens that it does not report", () => {
  const sampling = new SamplingTest(ALPHA);
  const top = [Math.log(0.5), Number.NEGATIVE_INFINITY];
  for (let i = 0; i < 400; i += 1)
    sampling.add({ logprob: i % 2 === 0 ? -20 : Math.log(0.5), top });
  expect(sampling.isRejected).toBe(false);
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
