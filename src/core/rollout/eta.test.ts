// The range against the truth, on iterations whose end is known: 80 % of the samples after a fifth of the time.

import { expect, test } from "bun:test";
import { uniformAt } from "../base/hash.ts";
import { EtaEstimator, type OpenRequest } from "./eta.ts";

interface World {
  readonly groups: number;
  readonly size: number;
  readonly slots: number;
  /** Standard deviation of the log lengths, and the share of its square that lies between groups. */
  readonly spread: number;
  readonly correlation: number;
  readonly tokensMax: number;
  /** Milliseconds per token of one response: fixed, and for each response that runs. */
  readonly stepMs: readonly [fixed: number, each: number];
  /** The first of every group, then the groups by its length; else in order. */
  readonly isProbed?: boolean;
}

const WORLDS: Readonly<Record<string, World>> = {
  small: {
    groups: 12,
    size: 8,
    slots: 32,
    spread: 1,
    correlation: 0.6,
    tokensMax: 2048,
    stepMs: [2, 0.2],
  },
  memoryBound: {
    groups: 64,
    size: 8,
    slots: 128,
    spread: 1.2,
    correlation: 0.7,
    tokensMax: 8192,
    stepMs: [20, 0.02],
  },
  computeBound: {
    groups: 64,
    size: 8,
    slots: 64,
    spread: 0.8,
    correlation: 0.5,
    tokensMax: 4096,
    stepMs: [0.2, 0.2],
  },
  allAtOnce: {
    groups: 40,
    size: 8,
    slots: 320,
    spread: 1,
    correlation: 0.8,
    tokensMax: 16_384,
    stepMs: [10, 0.05],
  },
  probed: {
    groups: 64,
    size: 8,
    slots: 64,
    spread: 1,
    correlation: 0.8,
    tokensMax: 8192,
    stepMs: [10, 0.05],
    isProbed: true,
  },
};

interface Job {
  readonly group: number;
  readonly total: number;
  readonly isCut: boolean;
  length: number;
  state: "waiting" | "running" | "finished";
}

function jobsOf(world: World, seed: number): Job[] {
  const key = { hi: seed, lo: 77 };
  const normal = (at: number) =>
    Math.sqrt(-2 * Math.log(1 - uniformAt(key, 2 * at))) *
    Math.cos(2 * Math.PI * uniformAt(key, 2 * at + 1));
  const { spread, correlation, tokensMax } = world;
  const jobs: Job[] = [];
  for (let group = 0; group < world.groups; group += 1) {
    const mean = Math.log(tokensMax / 8) + spread * Math.sqrt(correlation) * normal(group);
    for (let i = 0; i < world.size; i += 1) {
      const own = spread * Math.sqrt(1 - correlation) * normal(100_000 + group * world.size + i);
      const drawn = Math.max(1, Math.round(Math.exp(mean + own)));
      const total = Math.min(tokensMax, drawn);
      jobs.push({ group, total, isCut: drawn >= tokensMax, length: 0, state: "waiting" });
    }
  }
  if (!world.isProbed) return jobs;
  const probes = jobs.filter((_, i) => i % world.size === 0);
  const others = jobs.filter((_, i) => i % world.size !== 0);
  const probeOf = (job: Job) => probes[job.group]?.total ?? 0;
  return [...probes, ...others.toSorted((a, b) => probeOf(b) - probeOf(a))];
}

interface Sample {
  readonly atS: number;
  readonly lowS: number;
  readonly highS: number;
}

/** Plays an iteration in steps of a second; returns its end and what was estimated on the way. */
function play(world: World, seed: number, estimator: EtaEstimator) {
  const jobs = jobsOf(world, seed);
  const samples: Sample[] = [];
  let [seconds, left] = [0, jobs.length];
  const stepS = 0.25;
  for (let step = 0; left > 0; step += 1) {
    let running = jobs.filter(({ state }) => state === "running");
    for (const job of jobs) {
      if (running.length >= world.slots) break;
      if (job.state !== "waiting") continue;
      job.state = "running";
      running = [...running, job];
    }
    const perToken = (world.stepMs[0] + world.stepMs[1] * running.length) / 1000;
    let tokens = 0;
    for (const job of running) {
      const before = job.length;
      job.length = Math.min(job.total, job.length + stepS / perToken);
      tokens += job.length - before;
      if (job.length < job.total) continue;
      job.state = "finished";
      left -= 1;
      estimator.finished(job.total, job.isCut);
    }
    seconds += stepS;
    if (step % 6 !== 0) continue;
    estimator.observe(running.length, tokens / stepS);
    const eta = estimator.estimate(openOf(jobs, world.tokensMax));
    if (eta !== null) samples.push({ atS: seconds, lowS: eta.lowS, highS: eta.highS });
  }
  return { endS: seconds, samples };
}

function openOf(jobs: readonly Job[], tokensMax: number): OpenRequest[] {
  const logs = new Map<number, { sum: number; count: number }>();
  for (const { group, state, total } of jobs) {
    if (state !== "finished") continue;
    const { sum, count } = logs.get(group) ?? { sum: 0, count: 0 };
    logs.set(group, { sum: sum + Math.log(total), count: count + 1 });
  }
  return jobs.flatMap(({ group, length, state }) => {
    if (state === "finished") return [];
    const { sum, count } = logs.get(group) ?? { sum: 0, count: 0 };
    return {
      length: Math.floor(length),
      tokensMax,
      isRunning: state === "running",
      siblingLogs: sum,
      siblings: count,
    };
  });
}

for (const [name, world] of Object.entries(WORLDS)) {
  test(`eta: the range holds the truth in 80 % of the samples after a fifth of a run: ${name}`, () => {
    let [inside, all] = [0, 0];
    for (let seed = 1; seed <= 2; seed += 1) {
      const { endS, samples } = play(world, seed, new EtaEstimator());
      for (const { atS, lowS, highS } of samples) {
        if (atS < endS / 5) continue;
        const truth = endS - atS;
        all += 1;
        if (truth >= lowS && truth <= highS) inside += 1;
      }
    }
    expect(inside / all).toBeGreaterThanOrEqual(0.8);
  }, 180_000);
}

test("eta: none before a response has finished, and none while nothing runs", () => {
  const estimator = new EtaEstimator();
  const one = { length: 10, tokensMax: 100, isRunning: true, siblingLogs: 0, siblings: 0 };
  estimator.observe(1, 100);
  expect(estimator.estimate([one])).toBeNull();
  estimator.finished(20, false);
  const eta = estimator.estimate([one]);
  expect(eta?.lowS).toBeLessThanOrEqual(eta?.likelyS ?? 0);
  // At 100 tokens a second, its maximum of 100 tokens is a second away at most.
  expect(eta?.highS).toBeLessThan(1.5);
  expect(estimator.estimate([{ ...one, isRunning: false }])).toBeNull();
});
