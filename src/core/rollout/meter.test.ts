// The meter over many requests: it forgets when they finished, and no figure changes.

import { expect, test } from "bun:test";
import type { Clock } from "../base/clock.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../request/request.ts";
import { Meter } from "./meter.ts";
import type { Worker, WorkerStats } from "./worker.ts";

const POOL = {
  memoryBytes: 0,
  diskBytes: 0,
  puts: 0,
  hits: 0,
  misses: 0,
  corrupt: 0,
  evictions: 0,
  diskErrors: 0,
};

const STATS: WorkerStats = {
  ...{ running: 0, waiting: 0, kvTokensUsed: 0, steps: 0, busyMs: 0, draftMs: 0, outputTokens: 0 },
  ...{ prefillTokens: 0, recomputedTokens: 0, preemptions: 0, draftedTokens: 0, drafts: 0 },
  ...{ acceptedTokens: 0, kvLoads: 0, kvLoadFailures: 0 },
};

test("meter: the tail is exact after more requests than it keeps the times of", () => {
  const requests = 200_000;
  const now = { ms: 0 };
  const clock: Clock = { nowMs: () => now.ms };
  const meter = new Meter(clock);
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), Int32Array.of(1));
  const sampling = {
    temperature: 1,
    seed: 0,
    tokensMax: 1,
    stopTokenIds: [],
    ...SAMPLING_DEFAULTS,
  };
  const draw = drawKey(0, groupId("g"), 0);
  const all = Array.from({ length: requests }, () =>
    buffer.join(group, { sampling, draw, divisible: true, priority: 0 }),
  );
  for (const request of all) meter.requestJoined(request, weightEpoch(0));
  for (const request of all) {
    now.ms += 1;
    meter.requestFinished(request);
  }
  meter.ended();
  const report = meter.report({
    policy: "seer",
    draft: "off",
    deterministic: false,
    epoch: weightEpoch(0),
    interrupted: false,
    pool: { ...POOL },
  });
  expect(report.finished_requests).toBe(requests);
  expect(report.tail_s).toBeCloseTo((requests * 0.1) / 1000, 6);
  expect(meter.progress().requestsDone).toBe(requests);
});

test("meter: progress counts the current iteration alone, and requests that are carried into it", () => {
  const now = { ms: 0 };
  const buffer = new RequestBuffer();
  const meter = new Meter({ nowMs: () => now.ms }, () => buffer.requests);
  const sampling = {
    temperature: 1,
    seed: 0,
    tokensMax: 9,
    stopTokenIds: [],
    ...SAMPLING_DEFAULTS,
  };
  const join = (name: string, n: number) => {
    const group = buffer.open(groupId(name), Int32Array.of(1));
    return Array.from({ length: n }, (_, i) => {
      const draw = drawKey(0, groupId(name), i);
      const request = buffer.join(group, { sampling, draw, divisible: true, priority: 0 });
      meter.requestJoined(request, weightEpoch(0));
      return request;
    });
  };
  const first = join("a", 20);
  for (const request of first.slice(0, 17)) meter.requestFinished(request);
  expect(meter.progress()).toMatchObject({ iteration: 1, requests: 20, requestsDone: 17 });
  expect(meter.progress().isTail).toBe(false);
  meter.count("migrations");
  const [last, ...carried] = first.slice(17);
  if (last !== undefined) meter.requestFinished(last);
  expect(meter.progress().isTail).toBe(true);
  meter.endIteration();
  now.ms = 5000;
  join("b", 4);
  expect(carried).toHaveLength(2);
  expect(meter.progress()).toMatchObject({
    iteration: 2,
    isTail: false,
    elapsedS: 0,
    requests: 6,
    requestsDone: 0,
    migrations: 0,
  });
  expect(meter.counts.migrations).toBe(1);
});

test("meter: of a worker that was removed for good only its counts stay", () => {
  const meter = new Meter({ nowMs: () => 0 });
  const capacity = { slots: 1, kvTokens: 10, contextTokens: 10, kvBytesPerToken: 1 };
  for (let i = 0; i < 100; i += 1) {
    const id = workerId(i);
    meter.worker({ workerId: id, name: `w${i}`, capacity } as Worker);
    meter.stats(id, { ...STATS, preemptions: 1, drafts: 1, acceptedTokens: 2 });
    meter.workerForgotten(id);
  }
  expect(meter.progress()).toMatchObject({
    preemptions: 100,
    meanAcceptanceLength: 3,
    workers: [],
  });
  expect(meter.timeline().workers).toEqual([]);
  expect(meter.latest(workerId(7))).toBeNull();
});
