// Whether KV goes along with a request that leaves its worker, and what the workers are accounted for meanwhile.

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { Glob } from "bun";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { EmbeddedKvPool } from "../../host/embedded-pool.ts";
import { present } from "../base/assert.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { RequestBuffer, type Requests } from "../request/buffer.ts";
import { loadCore } from "../wasm/load.ts";
import { Loop } from "./loop.ts";
import type { EngineWorker } from "./worker.ts";

const PROMPT_TOKENS = 600;
const KV_TOKENS = 4096;
const HOME = workerId(0);
const OTHER = workerId(1);
const core = loadCore();

/** A request that is parked on HOME. */
function parked() {
  const clock = new ManualClock();
  const { dispatch, ledger, outbox, requests } = new Loop({
    policy: "divided",
    draft: "off",
    chunkTokens: 100,
    epoch: weightEpoch(0),
    pool: new EmbeddedKvPool({ memoryBytesMax: KV_TOKENS, disk: null }),
    clock,
    core,
    // No event comes, and an error has nobody to go to: it fails the test.
    listener: {},
  });
  const capacity = { slots: 4, kvTokens: KV_TOKENS, contextTokens: 2048, kvBytesPerToken: 1 };
  const all: string[] = [];
  for (const id of [HOME, OTHER]) {
    const send: EngineWorker["send"] = (commands) =>
      all.push(...commands.map((c) => `${c.kind} ${id}`));
    ledger.add({ workerId: id, name: "", capacity, send } as unknown as EngineWorker);
  }
  const group = requests.add({
    groupId: groupId("g"),
    prompt: new Int32Array(PROMPT_TOKENS),
    size: 1,
    sampling: samplingOf({ tokensMax: 1000 }),
  });
  const request = present(group.requests[0], "one request");
  const tokens = { chunkTokens: 100, reservedTokens: PROMPT_TOKENS + 100 };
  const run = (id: typeof HOME) =>
    dispatch.execute({ kind: "dispatch", ...tokens, request, workerId: id });
  /** Commands since the last call, sent or to be sent. */
  const sent = () => {
    for (const [id, commands] of outbox.take()) ledger.worker(id)?.send(commands);
    return all.splice(0);
  };
  const exported = (count: number) => {
    const kv = { tokens: count, bytes: new ArrayBuffer(count) };
    dispatch.exported(request.spec.requestId, kv, HOME);
  };
  const free = (id: typeof HOME) =>
    ledger.slots().find((slot) => slot.workerId === id)?.kvTokensFree;
  run(HOME);
  dispatch.goesOn(request);
  sent();
  return { dispatch, request, run, sent, exported, free };
}

test("dispatch: a request takes its KV along, and starts when that has come", async () => {
  const { request, run, sent, exported, free } = parked();
  run(OTHER);
  expect(sent()).toEqual(["export 0"]);
  expect(request.status).toBe("moving");
  expect(free(HOME)).toBe(KV_TOKENS - PROMPT_TOKENS);
  exported(PROMPT_TOKENS - 1);
  await new Promise(setImmediate);
  expect(sent()).toEqual(["run 1"]);
  expect(request.status).toBe("running");
  expect(free(HOME)).toBe(KV_TOKENS);
});

test("dispatch: KV that the pool has is not stored again", async () => {
  const { dispatch, request, run, sent, exported, free } = parked();
  dispatch.execute({ kind: "offload", request, workerId: HOME });
  exported(PROMPT_TOKENS);
  run(HOME);
  await new Promise(setImmediate);
  dispatch.goesOn(request);
  expect(sent()).toEqual(["export 0", "run 0"]);
  run(OTHER);
  expect(free(HOME)).toBe(KV_TOKENS);
  await new Promise(setImmediate);
  expect(sent()).toEqual(["release 0", "run 1"]);
});

test("reached: what is reserved moves along with the tokens, and leaves with the preempted request", () => {
  const { dispatch, request, run, sent, exported, free } = parked();
  run(HOME);
  expect(free(HOME)).toBe(KV_TOKENS - PROMPT_TOKENS - 100);
  request.response.append(0, new Int32Array(90), new Float32Array(90));
  dispatch.reached(request);
  // The lookahead of a worker with 4,096 tokens of KV is 16.
  expect(free(HOME)).toBe(KV_TOKENS - PROMPT_TOKENS - 106);
  dispatch.execute({ kind: "preempt", request, workerId: HOME });
  expect(sent()).toEqual(["run 0", "export 0"]);
  dispatch.goesOn(request);
  exported(0);
  expect(free(HOME)).toBe(KV_TOKENS);
});

test("status: only the dispatch has the buffer that can change it", () => {
  const root = join(import.meta.dir, "../..");
  const files = [...new Glob("**/*.ts").scanSync(root)].filter((file) => !/\.test\./.test(file));
  const naming = files.filter((file) =>
    /\bRequestBuffer\b/.test(readFileSync(join(root, file), "utf8")),
  );
  expect(naming.sort()).toEqual([
    "core/request/buffer.ts",
    "core/rollout/dispatch.ts",
    // It makes it, for the dispatch, and keeps what others see of it.
    "core/rollout/loop.ts",
  ]);
  const others: Requests = new RequestBuffer();
  // @ts-expect-error: those who see the requests cannot move one.
  expect(others.move).toBeFunction();
});
