// The sampling kernel against the obvious computation in JavaScript.

import { expect, test } from "bun:test";
import { uniformAt } from "../../core/base/hash.ts";
import { Sampler } from "./sampler.ts";

const SIZE = 1000;

function fill(sampler: Sampler, logit: (token: number) => number): void {
  for (let token = 0; token < sampler.row.length; token += 1) sampler.row[token] = logit(token);
}

/** Token and logprob by the book. */
function plain(
  row: Float32Array,
  temperature: number,
  u: number,
): { token: number; logprob: number } {
  let max = Number.NEGATIVE_INFINITY;
  for (const logit of row) max = Math.max(max, logit);
  const scaled = Float64Array.from(row, (logit) => (logit - max) / temperature);
  const total = scaled.reduce((sum, value) => sum + Math.exp(value), 0);
  let reached = 0;
  let token = 0;
  for (; token < row.length - 1; token += 1) {
    reached += Math.exp(scaled[token] ?? 0);
    if (u * total < reached) break;
  }
  return { token, logprob: (scaled[token] ?? 0) - Math.log(total) };
}

test("draw: tokens and logprobs are those of a plain inverse CDF", () => {
  for (const size of [1, 2, 63, 64, 65, SIZE]) {
    const sampler = new Sampler(size);
    for (const temperature of [0.3, 1, 2.5]) {
      fill(sampler, (token) => Math.sin(token * 12.9898 + size) * 9);
      for (let i = 0; i < 60; i += 1) {
        const u = uniformAt({ hi: size, lo: 3 }, i);
        const expected = plain(sampler.row, temperature, u);
        expect(sampler.draw(temperature, u)).toBe(expected.token);
        expect(sampler.logprob).toBeCloseTo(expected.logprob, 11);
      }
    }
  }
});

test("draw: temperature 0 takes the highest logit, the lowest id among equals, and its softmax", () => {
  const sampler = new Sampler(SIZE);
  fill(sampler, (token) => (token === 700 || token === 130 ? 5 : -1));
  expect(sampler.draw(0, 0.999)).toBe(130);
  expect(sampler.logprob).toBeCloseTo(5 - Math.log(2 * Math.exp(5) + 998 * Math.exp(-1)), 11);
});

test("draw: the extremes of u give the first and the last token with any probability", () => {
  const sampler = new Sampler(SIZE);
  fill(sampler, (token) => (token === 70 || token === 900 ? 2 : Number.NEGATIVE_INFINITY));
  expect(sampler.draw(1, 0)).toBe(70);
  expect(sampler.draw(1, 1 - 2 ** -53)).toBe(900);
  expect(sampler.logprob).toBeCloseTo(Math.log(0.5), 12);
});

test("draw: logits far apart neither overflow nor make a NaN", () => {
  const sampler = new Sampler(SIZE);
  fill(sampler, (token) => (token === 12 ? 3e38 : -3e38));
  expect(sampler.draw(1e-30, 0.5)).toBe(12);
  expect(sampler.logprob).toBe(0);
});

test("draw: a NaN among the logits, or nothing but -inf, gives no token", () => {
  const sampler = new Sampler(SIZE);
  fill(sampler, () => 0);
  sampler.row[999] = Number.NaN;
  for (const temperature of [0, 1]) expect(sampler.draw(temperature, 0.5)).toBe(-1);
  fill(sampler, () => Number.NEGATIVE_INFINITY);
  for (const temperature of [0, 1]) expect(sampler.draw(temperature, 0.5)).toBe(-1);
  fill(sampler, () => Number.POSITIVE_INFINITY);
  expect(sampler.draw(1, 0.5)).toBe(-1);
});
