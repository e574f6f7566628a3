// Faults of one worker, one listener or the KV pool stay contained: the rollout continues with all others.

import { expect, test } from "bun:test";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { EPOCH, expectWhole, type OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { present } from "../base/assert.ts";
import { groupId, requestId, weightEpoch, workerId } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import { Outbox } from "./turns.ts";
import type { WorkerCommand, WorkerEvent } from "./worker.ts";

test("advance: a strict request whose worker has just failed begins anew once it has settled, and once only", async () => {
  const settles: (() => void)[] = [];
  const { rollout, workers, join, submit, steps } = world({
    slots: 8,
    later: (act) => {
      settles.push(act);
      return () => {};
    },
  });
  rollout.addWorker(join());
  rollout.addWorker(join());
  const [like] = submit("like", 1).requests;
  const group = rollout.open(groupId("g"), Int32Array.of(1, 2));
  for (let i = 0; i < 4; i += 1) {
    const sampling = present(like, "one was submitted").spec.sampling;
    const draw = drawKey(1, group.groupId, i);
    rollout.join(group, { sampling, draw, divisible: true, priority: 0, isStrict: true });
  }
  await steps(2);
  workers[0]?.say(EPOCH, [{ kind: "failed", message: "died" }]);
  await workers[0]?.close();
  expect(settles.length).toBe(1);
  rollout.advance(weightEpoch(1));
  await steps(2);
  for (const settle of settles) settle();
  await steps(100);
  expectWhole([group]);
});

test("receive: a worker that fails behind the last token of a response has made it whole", async () => {
  const { rollout, workers, join, submit, steps } = world({});
  rollout.addWorker(join());
  const group = submit("g", 2);
  await steps(2);
  const [first, second] = group.requests.map(({ spec, response }) => {
    const left = 40 - response.length;
    const tokens = new Int32Array(left);
    const logprobs = new Float32Array(left);
    const { requestId: id } = spec;
    return { kind: "tokens", requestId: id, offset: response.length, tokens, logprobs, top: null };
  }) as WorkerEvent[];
  workers[0]?.say(EPOCH, [first, second, { kind: "failed", message: "died" }] as WorkerEvent[]);
  await steps(3);
  expect(group.requests.map(({ response }) => [response.length, response.finish])).toEqual([
    [40, "length"],
    [40, "length"],
  ]);
  expect(rollout.unfinished).toBe(0);
});

test("receive: a response that lacks a report, not a token, when its worker fails is made anew", async () => {
  for (const field of [{ return_routed_experts: true }, { prompt_logprobs: 1 }]) {
    const { rollout, workers, join, submit, steps } = world({});
    rollout.addWorker(join());
    const group = submit("g", 1, Int32Array.of(1, 2), field);
    await steps(2);
    const request = present(group.requests[0], "one was submitted");
    const { length } = request.response;
    const last = {
      kind: "tokens",
      requestId: request.spec.requestId,
      offset: length,
      top: null,
      tokens: new Int32Array(40 - length),
      logprobs: new Float32Array(40 - length),
    } as WorkerEvent;
    rollout.addWorker(join());
    workers[0]?.say(EPOCH, [last, { kind: "failed", message: "died" }]);
    await steps(1);
    expect([request.response.finish, request.response.restarts]).toEqual([null, 1]);
    await steps(100);
    expectWhole([group]);
  }
});

test("advance: a worker that has failed is sent nothing more", async () => {
  const { rollout, workers, join, submit, steps } = world({});
  rollout.addWorker(join());
  rollout.addWorker(join());
  submit("g", 4);
  await steps(2);
  const [first, second] = workers;
  first?.say(weightEpoch(7), [{ kind: "failed", message: "died" }]);
  for (const worker of workers) worker.sent.length = 0;
  rollout.advance(weightEpoch(1));
  await steps(3);
  expect(first?.sent).toEqual([]);
  expect(second?.sent[0]).toBe("advance");
});

test("removeWorker: the failure of a worker that was removed, or does not serve yet, is reported", async () => {
  const { rollout, workers, join, failed, steps } = world({});
  rollout.addWorker(join());
  rollout.removeWorker(workers[0] as OpenWorker);
  expect(failed).toEqual([]);
  workers[0]?.kill();
  rollout.watch(join());
  workers[1]?.kill();
  await steps(1);
  expect(failed).toEqual(["0: killed", "1: killed"]);
});

test("flush: a worker that throws when it is sent something has failed, and the others continue", async () => {
  const { rollout, workers, join, submit, steps, failed } = world({});
  rollout.addWorker(join());
  rollout.addWorker(join());
  const group = submit("g", 6);
  await steps(3);
  (workers[0] as OpenWorker).throws = true;
  await steps(100);
  expect(failed).toEqual(["0: cannot be sent commands: Maximum call stack size exceeded"]);
  expectWhole([group]);
});

test("outbox: what is posted while it is sent is of the next turn, also to a worker that was sent its part", () => {
  const outbox = new Outbox();
  const release = (id: number): WorkerCommand => ({ kind: "release", requestId: requestId(id) });
  outbox.post(workerId(0), release(0));
  outbox.post(workerId(1), release(1));
  const sent = [...outbox.take()].map(([worker, commands]) => {
    outbox.post(workerId(0), release(10 + worker));
    return commands;
  });
  expect(sent).toEqual([[release(0)], [release(1)]]);
  expect([...outbox.take()]).toEqual([[workerId(0), [release(10), release(11)]]]);
});

test("tokens: what does not fit the response fails the worker, not the rollout", async () => {
  const { rollout, workers, join, submit, steps, failed } = world({});
  rollout.addWorker(join());
  rollout.addWorker(join());
  const group = submit("g");
  await steps(1);
  const { requestId } = (group.requests[0] as RolloutRequest).spec;
  const at = (group.requests[0] as RolloutRequest).workerId as number;
  const tokens = new Int32Array(41);
  const logprobs = new Float32Array(41);
  workers[at]?.say(EPOCH, [{ kind: "tokens", requestId, offset: 1, tokens, logprobs, top: null }]);
  expect(failed.length).toBe(1);
  await workers[at]?.close();
  await steps(100);
  expectWhole([group]);
});

test("pool: one that throws or rejects costs computation, no request", async () => {
  const _clock = new ManualClock();
  const inner = new EmbeddedKvPool({ memoryBytesMax: 10_000, disk: null });
  let calls = 0;
  const pool = new Proxy(inner, {
    get(target, name) {
      const value = Reflect.get(target, name);
      if (typeof value !== "function") return value;
      return (...given: unknown[]) => {
        calls += 1;
        const fails = ["put", "get", "lease", "release"].includes(String(name)) && calls % 3 !== 0;
        if (!fails) return value.apply(target, given);
        if (name === "get") return Promise.reject(new Error("EIO"));
        throw new Error("EIO");
      };
    },
  });
  const { rollout, join, submit, steps } = world({ pool, slots: 1 });
  for (let i = 0; i < 2; i += 1) rollout.addWorker(join());
  const groups = Array.from({ length: 8 }, (_, i) => submit(`g${i}`));
  await steps(400);
  expectWhole(groups);
  expect(rollout.meter.counts.kv_pool_failures).toBeGreaterThan(0);
});
