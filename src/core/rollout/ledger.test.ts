import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId, workerId } from "../base/ids.ts";
import { RequestBuffer } from "../request/buffer.ts";
import { Ledger } from "./ledger.ts";
import type { EngineWorker, WorkerCapacity } from "./worker.ts";

function workerOf(id: number, capacity: WorkerCapacity): EngineWorker {
  return { workerId: workerId(id), name: "", capacity } as unknown as EngineWorker;
}

const CAPACITY = { slots: 8, kvTokens: 100, contextTokens: 50, kvBytesPerToken: 0 };

test("slots: what waits in an engine's own queue is sent beyond its slots, within its KV", () => {
  const ledger = new Ledger({ nowMs: () => 0 });
  ledger.add(workerOf(0, CAPACITY));
  ledger.add(workerOf(1, { ...CAPACITY, ahead: 2 }));
  ledger.book(workerId(1), { inFlight: 9, kvTokens: 90 });
  const found = ledger.slots().map(({ slots, inFlight, kvTokensFree }) => ({
    room: slots - inFlight,
    kvTokensFree,
  }));
  expect(found).toEqual([
    { room: 8, kvTokensFree: 100 },
    { room: 1, kvTokensFree: 10 },
  ]);
});

test("slots: requests of a group hold the full blocks of their prompt once", () => {
  const ledger = new Ledger({ nowMs: () => 0 });
  ledger.add(workerOf(0, { ...CAPACITY, kvBlockTokens: 4, sharesPrompts: true }));
  const buffer = new RequestBuffer();
  const group = buffer.open(groupId("g"), new Int32Array(10));
  const sampling = samplingOf({ tokensMax: 5 });
  const request = buffer.join(group, {
    sampling,
    draw: { hi: 0, lo: 0 },
    divisible: true,
    priority: 0,
  });
  const free = (change: 1 | -1) => {
    ledger.book(workerId(0), { inFlight: change, kvTokens: 20 * change });
    ledger.resides(workerId(0), request, change);
    return ledger.slots()[0]?.kvTokensFree;
  };
  expect([free(1), free(1), free(1)]).toEqual([80, 68, 56]);
  expect([free(-1), free(-1), free(-1)]).toEqual([68, 80, 100]);
});
