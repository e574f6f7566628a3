// The meter over many requests: it forgets when they finished, and no figure changes.

import { expect, test } from "bun:test";
import { NO_WORKER_STATS } from "../../../test/suite/no-figures.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { Meter } from "./meter.ts";
import type { EngineWorker } from "./worker.ts";

/** Joins so many requests of a new group. */
function join(buffer: RequestBuffer, meter: Meter, name: string, size: number) {
  const wanted = { prompt: Int32Array.of(1), sampling: samplingOf({ tokensMax: 9 }) };
  const { requests } = buffer.add({ groupId: groupId(name), size, ...wanted });
  for (const request of requests) meter.requestJoined(request, weightEpoch(0));
  return requests;
}

test("meter: the tail is exact after more requests than it keeps the times of", () => {
  const requests = 200_000;
  const now = { ms: 0 };
  const meter = new Meter({ nowMs: () => now.ms });
  const all = join(new RequestBuffer(), meter, "g", requests);
  for (const request of all) {
    now.ms += 1;
    meter.requestFinished(request);
  }
  expect(meter.progress().requestsDone).toBe(requests);
  const summary = meter.endIteration();
  expect(summary?.figures.finished_requests).toBe(requests);
  expect(summary?.tailS).toBeCloseTo((requests * 0.1) / 1000, 6);
});

test("meter: progress counts the current iteration alone, and requests that are carried into it", () => {
  const now = { ms: 0 };
  const buffer = new RequestBuffer();
  const meter = new Meter({ nowMs: () => now.ms }, () => buffer.requests);
  const first = join(buffer, meter, "a", 20);
  for (const request of first.slice(0, 17)) meter.requestFinished(request);
  expect(meter.progress()).toMatchObject({ iteration: 1, requests: 20, requestsDone: 17 });
  expect(meter.progress().isTail).toBe(false);
  meter.count("migrations");
  const [last, ...carried] = first.slice(17);
  if (last !== undefined) meter.requestFinished(last);
  expect(meter.progress().isTail).toBe(true);
  meter.endIteration();
  now.ms = 5000;
  join(buffer, meter, "b", 4);
  expect(carried).toHaveLength(2);
  const begun = { iteration: 2, isTail: false, elapsedS: 0, requestsDone: 0, migrations: 0 };
  expect(meter.progress()).toMatchObject({ ...begun, requests: 6 });
  expect(meter.counts.migrations).toBe(1);
});

test("meter: a group counts as finished while all its requests have ended, and once in each iteration", () => {
  const buffer = new RequestBuffer();
  const meter = new Meter({ nowMs: () => 0 });
  const group = buffer.open(groupId("a"), Int32Array.of(1));
  const draw = { hi: 0, lo: 0 };
  const join = () => {
    const sampling = samplingOf({ tokensMax: 9 });
    const request = buffer.join(group, { sampling, draw, divisible: true, priority: 0 });
    meter.requestJoined(request, weightEpoch(0));
    return request;
  };
  const end = (request: ReturnType<typeof join>) => {
    buffer.move(request, "finished");
    meter.requestFinished(request);
  };
  const counted = () => [meter.figures().groups, meter.figures().finished_groups];
  end(join());
  expect(counted()).toEqual([1, 1]);
  const second = join();
  expect(counted()).toEqual([1, 0]);
  end(second);
  expect(counted()).toEqual([1, 1]);
  meter.endIteration();
  const third = join();
  expect(counted()).toEqual([1, 0]);
  meter.endIteration();
  // It is carried into the next one, which begins with a group of its own.
  end(third);
  expect(group.endedIn).toBe(2);
});

test("meter: of a worker that was removed for good only its counts stay", () => {
  const meter = new Meter({ nowMs: () => 0 });
  const capacity = { slots: 1, kvTokens: 10, contextTokens: 10, kvBytesPerToken: 1 };
  for (let i = 0; i < 100; i += 1) {
    const id = workerId(i);
    meter.worker({ workerId: id, name: `w${i}`, capacity } as EngineWorker);
    meter.stats(id, { ...NO_WORKER_STATS, preemptions: 1, drafts: 1, acceptedTokens: 2 });
    meter.workerForgotten(id);
  }
  const left = { preemptions: 100, meanAcceptanceLength: 3, workers: [] };
  expect(meter.progress()).toMatchObject(left);
  expect(meter.timeline().workers).toEqual([]);
  expect(meter.latest(workerId(7))).toBeNull();
});
