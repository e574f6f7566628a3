// Requests that cannot run now, or must not run again, hold up nobody else.

import { expect, test } from "bun:test";
import { expectWhole, type OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { weightEpoch } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";

const LARGE_PROMPT = new Int32Array(100).fill(7);
const only = ({ requests }: { readonly requests: readonly RolloutRequest[] }): RolloutRequest =>
  requests[0] as RolloutRequest;

test("a request that only the lost worker could hold waits for it, and the others are served", async () => {
  const { rollout, workers, join, submit, steps } = world({});
  rollout.addWorker(join({ kvTokens: 400 }));
  rollout.addWorker(join({ kvTokens: 60 }));
  const large = submit("large", 1, LARGE_PROMPT);
  await steps(3);
  (workers[0] as OpenWorker).kill();
  const small = Array.from({ length: 20 }, (_, i) => submit(`small-${i}`));
  await steps(300);
  expectWhole(small);
  expect(only(large).status).toBe("waiting");
  rollout.addWorker(join({ kvTokens: 400, as: 0 }));
  await steps(60);
  expectWhole([large]);
});

test("a request that no worker can hold any more ends with a refusal that names the KV it needs", async () => {
  const { rollout, workers, join, submit, steps } = world({});
  rollout.addWorker(join({ kvTokens: 400 }));
  const large = submit("large", 1, LARGE_PROMPT);
  await steps(3);
  (workers[0] as OpenWorker).kill();
  rollout.addWorker(join({ kvTokens: 60, as: 0 }));
  await steps(3);
  const { response, spec } = only(large);
  expect(response.finish).toBe("abort");
  expect(response.refusal?.status).toBe(502);
  const needed = LARGE_PROMPT.length + response.length + 4;
  expect(response.refusal?.message).toBe(
    `request ${spec.requestId} needs ${needed} tokens of KV, and the largest worker has 60`,
  );
  const small = submit("small");
  await steps(60);
  expectWhole([small]);
});

test("a request like one that workers died of is refused at once, until weights or time have passed", async () => {
  const { rollout, workers, join, submit, steps, clock } = world({});
  const dies = Int32Array.of(6, 6, 6);
  const arm = (worker: OpenWorker) => {
    const send = worker.send.bind(worker);
    worker.send = (commands) => {
      send(commands);
      const isPoisoned = commands.some((c) => c.kind === "run" && c.request.prompt[0] === 6);
      if (isPoisoned) worker.kill();
    };
    return worker;
  };
  for (let i = 0; i < 8; i += 1) rollout.addWorker(arm(join()));
  const first = submit("a", 1, dies);
  await steps(5);
  expect(only(first).response.refusal?.status).toBe(502);
  expect(rollout.workers.length).toBe(6);
  const again = submit("b", 1, dies);
  const other = submit("c");
  await steps(60);
  expect(only(again).response.refusal?.message).toBe(only(first).response.refusal?.message);
  expect(rollout.workers.length).toBe(6);
  expectWhole([other]);
  clock.advance(60_000);
  submit("d", 1, dies);
  await steps(5);
  expect(rollout.workers.length).toBe(4);
  rollout.advance(weightEpoch(1));
  submit("e", 1, dies);
  await steps(5);
  expect(rollout.workers.length).toBe(2);
  expect(workers.length).toBe(8);
});
