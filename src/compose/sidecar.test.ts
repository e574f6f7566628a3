// A sidecar in this process without a port, and the feed of the operator's events.

import { expect, test } from "bun:test";
import { SimulatedWorker } from "../../test/faults/simulated/worker.ts";
import { samplingOf } from "../../test/suite/request-spec.ts";
import { serveOptions } from "../../test/suite/serve-fixture.ts";
import { untilSettled } from "../../test/suite/sidecar-bed.ts";
import { OperatorFeed } from "./operator-log.ts";
import { openSidecar } from "./sidecar.ts";

const PLAN = {
  id: null,
  requests: 3,
  priority: 0,
  isDetached: true,
  isStrict: true,
  groups: [
    {
      id: "a",
      prompt: Int32Array.of(1, 2),
      n: 3,
      seeded: false,
      sampling: samplingOf({ tokensMax: 100 }),
    },
  ],
};

test("open: a rollout is begun, drained and read without a port", async () => {
  const workers: SimulatedWorker[] = [];
  const capacity = { slots: 4, kvTokens: 8192, contextTokens: 2048, kvBytesPerToken: 8 };
  const ended: number[] = [];
  const sidecar = await openSidecar(
    serveOptions({
      events: { iterationEnded: ({ figures }) => ended.push(figures.requests) },
      sources: [
        {
          name: "simulated",
          keepsWeights: false,
          open: async ({ workerId, epoch }) => {
            const worker = new SimulatedWorker({ workerId, capacity, epoch, lengthOf: () => 9 });
            workers.push(worker);
            return worker;
          },
        },
      ],
    }),
  );
  await sidecar.opened;
  expect(sidecar.hasStarted()).toBe(true);
  const run = sidecar.rollouts.begin(PLAN, "");
  await untilSettled(sidecar.drain(), async () => {
    for (const worker of workers) worker.step();
    await new Promise<void>((resolve) => setImmediate(resolve));
  });
  expect([run.state, run.outputTokens]).toEqual(["finished", 27]);
  expect(() => sidecar.rollouts.begin(PLAN, "")).toThrow("no new requests");
  await sidecar.stop();
  expect(workers.map(({ isDead }) => isDead)).toEqual([true]);
  expect(ended).toEqual([3]);
});

test("feed: a reader that throws is reported, and the others read on", () => {
  const seen: unknown[] = [];
  const { events } = serveOptions({
    sources: [],
    events: {
      resumed: (count) => seen.push(["operator", count]),
      failed: (error) => seen.push(error),
    },
  });
  const feed = new OperatorFeed(events);
  const thrown = new Error("reader");
  feed.add({
    resumed: () => {
      throw thrown;
    },
  });
  feed.add({ resumed: (count) => seen.push(["last", count]) });
  feed.log.resumed(2);
  expect(seen).toEqual([["operator", 2], thrown, ["last", 2]]);
});
