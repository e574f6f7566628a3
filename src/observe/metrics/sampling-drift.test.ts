// The drift of sampling on samplers that are right and on samplers that are wrong, in ways that happen.

import { expect, test } from "bun:test";
import { Registry } from "prom-client";
import { groupId, weightEpoch, workerId } from "../../core/base/ids.ts";
import { RequestBuffer } from "../../core/request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import { compareSiblings, SamplingDrift } from "./sampling-drift.ts";

const PAIRS = 4000;
const LENGTH = 6;
const VOCABULARY = 50;

let state = 0;

/** Mulberry32. */
function random(): number {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}

/** A distribution that depends on the text, peaked like those of language models. */
function distribution(prompt: number, text: readonly number[]): number[] {
  let hash = prompt;
  for (const token of text) hash = Math.imul(hash ^ token, 0x9e3779b1) >>> 0;
  const weights = Array.from({ length: VOCABULARY }, (_, i) => {
    const bits = Math.imul(hash ^ (i * 7919), 0x85ebca6b) >>> 0;
    return Math.exp(12 * (bits / 2 ** 32));
  });
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
}

function draw(probabilities: readonly number[]): number {
  let left = random();
  for (const [token, probability] of probabilities.entries()) {
    left -= probability;
    if (left < 0) return token;
  }
  return VOCABULARY - 1;
}

type Sampler = (probabilities: readonly number[], draft: number | undefined) => number;

/** z of all pairs: drawn by `sampler`, the second with the first's tokens as drafts. */
function drift(sampler: Sampler, report = (probability: number) => Math.log(probability)) {
  state = 42;
  let [difference, variance, positions, same, logprobs] = [0, 0, 0, 0, 0];
  for (let prompt = 0; prompt < PAIRS; prompt += 1) {
    const one = (drafts: readonly number[], of: (probability: number) => number) => {
      const tokens: number[] = [];
      const values: number[] = [];
      while (tokens.length < LENGTH) {
        const probabilities = distribution(prompt, tokens);
        const follows = drafts.slice(0, tokens.length).every((token, i) => token === tokens[i]);
        const token = sampler(probabilities, follows ? drafts[tokens.length] : undefined);
        tokens.push(token);
        values.push(of(probabilities[token] ?? 0));
      }
      return [Int32Array.from(tokens), Float32Array.from(values)] as const;
    };
    const first = one([], Math.log);
    const figures = compareSiblings(first, one([...first[0]], report));
    difference += figures.same - figures.expected;
    variance += figures.variance;
    positions += figures.positions;
    same += figures.same;
    logprobs += figures.logprobDifference;
  }
  return { z: difference / Math.sqrt(variance), positions, perToken: logprobs / same };
}

/** Rejection sampling of a draft that is certain: kept with its probability, else drawn from the rest. */
const lossless: Sampler = (probabilities, draft) => {
  if (draft === undefined) return draw(probabilities);
  const kept = probabilities[draft] ?? 0;
  if (random() < kept) return draft;
  return draw(probabilities.map((p, i) => (i === draft ? 0 : p / (1 - kept))));
};

test("drift: a lossless sampler shows none, with drafts or without", () => {
  for (const sampler of [lossless, (p: readonly number[]) => draw(p)]) {
    const { z, positions, perToken } = drift(sampler);
    expect(positions).toBeGreaterThan(PAIRS);
    expect(Math.abs(z)).toBeLessThan(3.5);
    expect(perToken).toBe(0);
  }
});

test("drift: a sampler that keeps drafts too readily, or redraws what it refused, is seen", () => {
  const eager: Sampler = (p, draft) =>
    draft !== undefined && random() < Math.min(1, 1.3 * (p[draft] ?? 0)) ? draft : draw(p);
  expect(drift(eager).z).toBeGreaterThan(8);
  // The residual distribution is forgotten: refused drafts can be drawn again.
  const forgetful: Sampler = (p, draft) =>
    draft !== undefined && random() < (p[draft] ?? 0) ? draft : draw(p);
  expect(drift(forgetful).z).toBeGreaterThan(8);
});

test("drift: tokens drawn at another temperature than the reported one are seen", () => {
  const cold: Sampler = (p) => {
    const sharp = p.map((value) => value ** 2);
    const sum = sharp.reduce((total, value) => total + value, 0);
    return draw(sharp.map((value) => value / sum));
  };
  expect(drift(cold).z).toBeGreaterThan(8);
});

test("drift: an engine that reports other probabilities than its sibling is seen", () => {
  expect(drift(lossless, (p) => Math.log(p) + 0.5).perToken).toBeCloseTo(0.5, 3);
});

test("drift: siblings are paired by index, within one prompt and weight epoch, where sampling is plain and seeds differ", async () => {
  const registry = new Registry();
  const meter = new SamplingDrift(registry, (worker) => `engine ${worker}`);
  const positions = async () => {
    const text = await registry.metrics();
    return [...text.matchAll(/positions_total\{engine="([^"]*)"\} (\d+)/g)].map(
      ([, engine, count]) => `${engine}: ${count}`,
    );
  };
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), Int32Array.of(1));
  const join = (temperature: number, engine: number, epoch: number, seed = buffer.size) => {
    const sampling = { ...SAMPLING_DEFAULTS, temperature, seed, tokensMax: 8, stopTokenIds: [] };
    const draw = drawKey(seed, "", 0);
    const request = buffer.join(group, { sampling, draw, divisible: true, priority: 0 });
    request.response.openChunk(workerId(engine), weightEpoch(epoch));
    request.response.append(0, Int32Array.of(1, 2), Float32Array.of(-1, -1));
    return request;
  };
  const all = [
    ...[join(1, 0, 0), join(1, 1, 0)],
    // Another temperature, another epoch: not compared.
    ...[join(0.7, 0, 0), join(1, 1, 0), join(1, 0, 0), join(1, 1, 1)],
    ...[join(1, 2, 0), join(1, 2, 0)],
    // The client's seed is the same: they draw the same tokens.
    ...[join(1, 3, 0, 1234), join(1, 3, 0, 1234)],
  ];
  // 2 and 7 finish first, but are no pair.
  for (const index of [2, 7, 0, 1, 3, 4, 5, 6, 8, 9]) {
    const request = all[index];
    if (request === undefined) throw new Error("ten were made");
    request.response.finish = "length";
    request.status = "finished";
    meter.finished(request);
  }
  expect((await positions()).toSorted()).toEqual(["engine 0: 2", "engine 1: 2", "engine 2: 2"]);
});
