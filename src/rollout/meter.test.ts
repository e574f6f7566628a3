// The meter over many requests: it forgets when they finished, and no figure changes.

import { expect, test } from "bun:test";
import type { Clock } from "../base/clock.ts";
import { groupId, weightEpoch } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../request/request.ts";
import { Meter } from "./meter.ts";

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
  for (let i = 0; i < requests; i += 1) {
    meter.requestJoined(buffer.join(group, { sampling, draw, divisible: true, priority: 0 }));
  }
  for (let i = 0; i < requests; i += 1) {
    now.ms += 1;
    meter.requestFinished(false);
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
