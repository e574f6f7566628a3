// Waits of the rollout that no other request ends: each ends at its bound, with a message that names it.

import { expect, test } from "bun:test";
import { ManualTimers } from "../../../test/suite/manual-clock.ts";
import { expectWhole, type OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { present } from "../base/assert.ts";
import { requestId } from "../base/ids.ts";
import type { Group } from "../request/buffer.ts";

const only = ({ requests }: Group) => present(requests[0], "a group of one");

function bed(options: Parameters<typeof world>[0] = {}) {
  const timers = new ManualTimers();
  const ended: string[] = [];
  const waitEnded = (message: string) => ended.push(message);
  const made = world({ later: timers.later, listener: { waitEnded }, ...options });
  const names = () => Array.from(made.rollout.waits, ({ forWhom, what }) => `${what}: ${forWhom}`);
  return { ...made, timers, ended, names };
}

test("no open worker: a request waits for one, and after an hour ends with an error that names the bound", async () => {
  const { rollout, join, submit, steps, timers, ended, names } = bed();
  const group = submit("a");
  await steps(1);
  expect(names()).toEqual(["generation: an engine"]);
  rollout.addWorker(join());
  await steps(60);
  expectWhole([group]);
  expect([names(), timers.size]).toEqual([[], 0]);
  for (const worker of rollout.workers) rollout.removeWorker(worker);
  const late = only(submit("b"));
  await steps(1);
  expect(timers.run(3_599_999)).toEqual([]);
  expect(late.status).toBe("waiting");
  expect(timers.run()).toEqual([3_600_000]);
  const message = "no_open_worker: generation waited 3600 s for an engine, the bound: none is open";
  expect(late.response.refusal).toEqual({ status: 503, message, code: "no_open_worker" });
  expect(ended).toEqual([message]);
  await steps(1);
  expect(rollout.waits).toEqual([]);
});

test("no large worker: only the request that is too large for the others ends", async () => {
  const { rollout, workers, join, submit, steps, timers } = bed();
  rollout.addWorker(join({ kvTokens: 400 }));
  rollout.addWorker(join({ kvTokens: 60 }));
  const large = submit("large", 1, new Int32Array(100).fill(7));
  await steps(3);
  (workers[0] as OpenWorker).kill();
  await steps(1);
  timers.run(500);
  const small = submit("small");
  await steps(60);
  expectWhole([small]);
  expect(timers.run()).toEqual([3_600_000]);
  expect(only(large).response.refusal?.code).toBe("no_large_worker");
});

test("pause: what waits for its end is given up after a day", async () => {
  const { rollout, join, submit, steps, timers, names } = bed();
  rollout.addWorker(join());
  void rollout.pause("keep");
  const request = only(submit("a"));
  await steps(3);
  expect(names()).toEqual(["generation: a resume"]);
  expect(timers.run()).toEqual([86_400_000]);
  expect(request.response.refusal?.code).toBe("paused_too_long");
});

test("KV: an engine that does not hand it out in time is not waited for", async () => {
  const { rollout, workers, join, submit, steps, timers, ended, names } = bed({
    slots: 1,
    policy: "seer",
  });
  rollout.addWorker(join({ kvTokens: 60 }));
  const groups = ["a", "b", "c"].map((name) => submit(name));
  const worker = workers[0] as OpenWorker;
  const send = worker.send.bind(worker);
  // It answers no export.
  worker.send = (commands) => send(commands.filter(({ kind }) => kind !== "export"));
  for (let i = 0; names().length === 0; i += 1) {
    expect(i).toBeLessThan(20);
    await steps(1);
  }
  expect(names()[0]).toMatch(/^KV of request \d \(engine 0\): an engine$/);
  const [first] = timers.run(60_000);
  expect(first).toBe(60_000);
  expect(ended[0]).toMatch(
    /^kv_out: KV of request \d \(engine 0\) waited 60 s for an engine, the bound/,
  );
  expect(rollout.meter.counts.kv_waits_ended).toBeGreaterThan(0);
  worker.send = send;
  await steps(100);
  expectWhole(groups);
  expect([rollout.waits, timers.size]).toEqual([[], 0]);
});

test("KV: a pool that does not answer in time is not waited for, and what comes late is ignored", async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  let isSlow = true;
  class SlowPool extends EmbeddedKvPool {
    override async get(key: Parameters<EmbeddedKvPool["get"]>[0]) {
      if (isSlow) await promise;
      return await super.get(key);
    }
  }
  const pool = new SlowPool({ memoryBytesMax: 1e6, disk: null });
  const { rollout, join, submit, steps, timers, ended, names } = bed({
    slots: 1,
    pool,
    policy: "seer",
  });
  rollout.addWorker(join({ kvTokens: 60 }));
  const groups = ["a", "b", "c"].map((name) => submit(name));
  for (let i = 0; !names().some((name) => name.endsWith("the KV pool")); i += 1) {
    expect(i).toBeLessThan(40);
    await steps(1);
  }
  expect(timers.run(30_000)).toEqual([30_000]);
  expect(ended[0]).toMatch(
    /^kv_in: KV of request \d \(engine 0\) waited 30 s for the KV pool, the bound/,
  );
  isSlow = false;
  resolve();
  await steps(100);
  expectWhole(groups);
  expect([rollout.waits, timers.size]).toEqual([[], 0]);
});

test("KV: what comes late of one move is not taken for the next one to the same engine", async () => {
  const late: (() => void)[] = [];
  class StuckPool extends EmbeddedKvPool {
    override async get(key: Parameters<EmbeddedKvPool["get"]>[0]) {
      await new Promise<void>((resolve) => late.push(resolve));
      return await super.get(key);
    }
  }
  const pool = new StuckPool({ memoryBytesMax: 1e6, disk: null });
  const { rollout, join, submit, steps, timers, names } = bed({ slots: 1, pool, policy: "seer" });
  rollout.addWorker(join({ kvTokens: 60 }));
  const groups = ["a", "b", "c"].map((name) => submit(name));
  const moved = new Map<string, () => void>();
  let again: string | undefined;
  for (let i = 0; again === undefined; i += 1) {
    expect(i).toBeLessThan(100);
    await steps(1);
    const name = names().find((one) => one.endsWith("the KV pool"));
    const answer = late.pop();
    if (name === undefined || answer === undefined) continue;
    if (moved.has(name)) again = name;
    else timers.run(30_000);
    moved.getOrInsert(name, answer);
  }
  present(moved.get(again), "its first move was given up")();
  await steps(1);
  const [id] = again.match(/\d+/) ?? [];
  expect(rollout.request(requestId(Number(id)))?.status).toBe("moving");
  for (let i = 0; groups.some(({ finished }) => finished === 0); i += 1) {
    expect(i).toBeLessThan(200);
    timers.run(30_000);
    await steps(1);
  }
  expectWhole(groups);
});

test("no open worker: a pause ends the wait, as engines may open meanwhile", async () => {
  const { rollout, join, submit, steps, timers, names } = bed();
  const group = submit("a");
  await steps(1);
  void rollout.pause("keep");
  rollout.addWorker(join());
  await steps(1);
  expect(names()).toEqual(["generation: a resume"]);
  timers.run(3_600_000);
  rollout.resume();
  await steps(60);
  expectWhole([group]);
});
