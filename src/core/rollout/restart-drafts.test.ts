// A response that begins anew on another worker is drafted for there: its worker's replica knows its new tokens, and
// those of its first beginning, as of a sibling. A worker that begins to draft late gets what it lacks.

import { expect, test } from "bun:test";
import { simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { EPOCH, expectWhole, type OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { groupId } from "../base/ids.ts";
import type { DraftSource } from "../draft/drafter.ts";
import { Replica } from "../draft/replica.ts";
import type { Group } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import type { WorkerCommand } from "./worker.ts";

/** Keeps a replica, as an engine does with draft updates. */
function replicaOf(worker: OpenWorker): { replica: Replica; sources: DraftSource[] } {
  const replica = new Replica();
  const sources: DraftSource[] = [];
  const send = worker.send.bind(worker);
  worker.send = (commands: readonly WorkerCommand[]) => {
    for (const command of commands) {
      if (command.kind === "register_group")
        replica.register(command.groupId, command.prompt, command.past);
      if (command.kind === "delta") {
        const { groupId: id, sampleIndex, offset, tokens } = command;
        expect(replica.update(id, sampleIndex, offset, tokens).kind).toBe("ok");
      }
      if (command.kind === "run" && command.draft !== null) sources.push(command.draft);
    }
    send(commands);
  };
  return { replica, sources };
}

test("a response that restarted is drafted for where it runs then", async () => {
  const { rollout, workers, join, steps, clock } = world({});
  const replicas = [join(), join()].map(replicaOf);
  for (const worker of workers) rollout.addWorker(worker);
  const group = rollout.open(groupId("g"), Int32Array.of(1, 2));
  const sampling = samplingOf({ seed: 1, tokensMax: 40 });
  const wanted = { sampling, draw: drawKey(1, "", 0), divisible: false, priority: 0 };
  const request = rollout.join(group, wanted);
  rollout.join(group, { ...wanted, draw: drawKey(1, "", 1) });
  await steps(12);
  expect(request.response.length).toBeGreaterThan(8);
  const from = request.workerId as number;
  const to = 1 - from;
  // The response's tokens reach the replica of its sibling's worker.
  clock.advance(100);
  await steps(2);
  workers[from]?.kill();
  await steps(5);
  expect(request.workerId as number).toBe(to);
  const source = replicas[to]?.sources.at(-1) as DraftSource;
  expect(source).toEqual({ groupId: groupId("g"), sampleIndex: 2 });
  const { replica } = replicas[to] as { replica: Replica };
  const tokens = request.response.tokens().slice();
  replica.update(source.groupId, source.sampleIndex, 0, tokens);
  const { start, tokens: drafted } = replica.propose([
    { ...source, tokensMax: 4, probabilityMin: 0, tree: false },
  ]);
  // The restarted response has the same tokens again.
  const next = Array.from({ length: start[1] ?? 0 }, (_, i) =>
    simulatedToken(request.spec.requestId, tokens.length + i),
  );
  expect(next.length).toBe(4);
  expect([...drafted.subarray(0, start[1])]).toEqual(next);
  await steps(60);
  rollout.close(group);
  expectWhole([group]);
  expect(rollout.epoch).toBe(EPOCH);
});

test("a worker that does not draft gets no draft groups", async () => {
  const { rollout, join, steps } = world({});
  const worker = join();
  Object.assign(worker, { capacity: { ...worker.capacity, drafts: false } });
  const { replica, sources } = replicaOf(worker);
  rollout.addWorker(worker);
  const group = rollout.open(groupId("g"), Int32Array.of(1, 2));
  const sampling = samplingOf({ seed: 1, tokensMax: 60 });
  rollout.join(group, { sampling, draw: drawKey(1, "", 0), divisible: false, priority: 0 });
  await steps(12);
  expect(sources.length).toBe(1);
  expect(replica.has(groupId("g"))).toBe(false);
  await steps(60);
  rollout.close(group);
  expectWhole([group]);
});

test("an engine drafts a group's first tokens from what earlier epochs made of its prompt", async () => {
  const past = [Int32Array.of(5, 6, 7)];
  const history = { prior: () => null, past: ({ prompt }: Group) => (prompt[0] === 1 ? past : []) };
  const { rollout, join, submit, steps } = world({ history });
  const worker = join();
  const { replica } = replicaOf(worker);
  rollout.addWorker(worker);
  submit("seen");
  submit("other", 1, Int32Array.of(9));
  await steps(1);
  const query = { sampleIndex: 7, tokensMax: 4, probabilityMin: 0, tree: false };
  const { start, tokens } = replica.propose([
    { ...query, groupId: groupId("seen") },
    { ...query, groupId: groupId("other") },
  ]);
  expect([...tokens.subarray(0, start[1])]).toEqual([5, 6, 7]);
  expect(start[2]).toBe(start[1] ?? 0);
});
