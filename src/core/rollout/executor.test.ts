// Whether KV goes along with a request that leaves its worker.

import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { present } from "../base/assert.ts";
import { groupId, workerId } from "../base/ids.ts";
import { type Request, RequestBuffer } from "../request/buffer.ts";
import { Executor, type ExecutorSteps } from "./executor.ts";
import { Ledger } from "./ledger.ts";
import type { Worker } from "./worker.ts";

const PROMPT_TOKENS = 600;
const [HOME, OTHER] = [workerId(0), workerId(1)];

/** A request that is parked on HOME, and a pool that has `pooledTokens` of its KV. */
function parked(options: { pooledTokens: number }) {
  const ledger = new Ledger({ nowMs: () => 0 });
  const capacity = { slots: 4, kvTokens: 4096, contextTokens: 2048, kvBytesPerToken: 1 };
  for (const id of [HOME, OTHER]) {
    ledger.add({ workerId: id, name: "", capacity } as unknown as Worker);
  }
  const steps: string[] = [];
  const performed: ExecutorSteps = {
    preempt: (_request, from) => steps.push(`preempt ${from}`),
    depart: (_request, from, tokens) => steps.push(`depart ${from} ${tokens}`),
    drop: (_request, from) => steps.push(`drop ${from}`),
    load: (_request, target) => steps.push(`load ${target.workerId}`),
    begin: (_request, target) => steps.push(`begin ${target.workerId}`),
    migrated: () => {},
    pooledTokens: () => options.pooledTokens,
  };
  const buffer = new RequestBuffer();
  const { requests } = buffer.add({
    groupId: groupId("g"),
    prompt: new Int32Array(PROMPT_TOKENS),
    size: 1,
    sampling: samplingOf({ tokensMax: 1000 }),
  });
  const request: Request = present(requests[0], "one request");
  const executor = new Executor(ledger, performed);
  const tokens = { chunkTokens: 100, reservedTokens: PROMPT_TOKENS + 100 };
  const run = (id: typeof HOME) => {
    buffer.move(request, "moving");
    executor.execute({ kind: "dispatch", ...tokens, request, workerId: id });
  };
  const start = () => {
    executor.start(request, { workerId: HOME, chunkTokens: 100 });
    buffer.move(request, "running");
  };
  run(HOME);
  start();
  executor.parked(request);
  buffer.move(request, "waiting");
  steps.length = 0;
  const free = (id: typeof HOME) =>
    ledger.slots().find((slot) => slot.workerId === id)?.kvTokensFree;
  return { executor, request, run, start, steps, free };
}

test("execute: a request takes its KV along, however little the pool lacks of it", () => {
  const { run, steps } = parked({ pooledTokens: PROMPT_TOKENS - 1 });
  run(OTHER);
  expect(steps).toEqual([`depart 0 ${PROMPT_TOKENS}`]);
});

test("execute: KV that the pool has is not stored again", () => {
  const { run, steps, free } = parked({ pooledTokens: PROMPT_TOKENS });
  run(OTHER);
  expect(steps).toEqual(["drop 0", "load 1"]);
  expect(free(HOME)).toBe(4096);
});

test("reached: what is reserved moves along with the tokens, and leaves with the preempted request", () => {
  const { executor, request, run, start, steps, free } = parked({ pooledTokens: 0 });
  run(HOME);
  start();
  expect(free(HOME)).toBe(4096 - PROMPT_TOKENS - 100);
  executor.reached(request, PROMPT_TOKENS + 90);
  // The lookahead of a worker with 4,096 tokens of KV is 16.
  expect(free(HOME)).toBe(4096 - PROMPT_TOKENS - 106);
  executor.execute({ kind: "preempt", request, workerId: HOME });
  expect(steps.at(-1)).toBe("preempt 0");
  executor.parked(request);
  executor.evicted(request);
  expect(free(HOME)).toBe(4096);
});
