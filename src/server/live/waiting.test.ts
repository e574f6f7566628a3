// What the server says it waits for: nothing amiss in iterations in which nothing is, and each of the three faults that
// look alike from outside.

import { expect, test } from "bun:test";
import { StandInBed } from "../../../test/faults/attacks/stand-in-bed.ts";
import { ControlFixture } from "../../../test/suite/control-fixture.ts";
import { liveBed } from "../../../test/suite/live-bed.ts";
import { ManualTimers } from "../../../test/suite/manual-clock.ts";
import { DEAF, specFor } from "../../../test/suite/sidecar-bed.ts";
import { assert } from "../../core/base/assert.ts";
import { fold32 } from "../../core/base/hash.ts";
import type { Waiting } from "./waiting.ts";

const ITERATIONS = 100;

function watched(options: Parameters<typeof liveBed>[0]) {
  const { bed, view, members } = liveBed(options);
  const amiss = () => view.waiting().waiting.filter(({ state }) => state !== "ok");
  return { bed, view, members, amiss };
}

test("waiting: nothing is amiss in iterations in which nothing is wrong", async () => {
  // Lengths within a factor of four, as within groups of recorded traces.
  const { bed, view } = watched({
    lengthOf: ({ requestId }) => 8 + (fold32(requestId, 7) % 24),
  });
  let named = 0;
  for (let i = 0; i < ITERATIONS; i += 1) {
    for (let group = 0; group < 3; group += 1) bed.generate([i % 900, group], 4);
    while (bed.sidecar.rollout.unfinished > 0) {
      await bed.step();
      const { waiting } = view.waiting();
      expect(waiting.filter(({ state }) => state !== "ok")).toEqual([]);
      named += waiting.length;
    }
    bed.sidecar.rollout.meter.endIteration();
  }
  expect(named).toBeGreaterThan(ITERATIONS);
}, 180_000);

test("waiting: an engine that makes no step is stuck, and one response is far too long", async () => {
  const { bed, view, amiss } = watched({
    lengthOf: ({ sampleIndex }) => (sampleIndex === 0 ? 900 : 10),
  });
  bed.sidecar.generate({ ...specFor([1], 8) }, DEAF);
  while (bed.sidecar.rollout.unfinished > 1) await bed.step();
  while (amiss().length === 0) await bed.step();
  expect(amiss()[0]?.reason).toMatch(
    /^iteration 1 waits for 1 of 8: group .* response 0, \d+ tokens; it is .* times its siblings' median/,
  );
  const busy = bed.workers.find((worker) => bed.sidecar.rollout.busyWorkers.includes(worker));
  bed.clock.advance(2_000);
  const stuck = amiss().find(({ kind }) => kind === "engine");
  expect(stuck?.reason).toBe(
    `1 response waits for engine ${busy?.workerId} (vllm-${busy?.workerId}): no token or step for 2 s (decode); a step takes 1 ms`,
  );
  expect(view.waiting().engines.filter(({ doing }) => doing === "idle")).toHaveLength(1);
});

test("waiting: a server that answers its health check and makes no token is stuck", async () => {
  const bed = await StandInBed.start(2);
  const ask = () => Promise.all([4, 5, 6, 7].map((token) => bed.complete([token, 9])));
  await ask();
  const second = bed.standIns[1];
  assert(second !== undefined, "there are two");
  second.engine.pauseMode = "keep";
  const open = ask();
  const isNamed = async () => {
    const { waiting } = (await (await bed.call("GET", "/v1/waiting")).json()) as {
      waiting: Waiting[];
    };
    return waiting.some(
      ({ state, reason }) => state === "stuck" && /for engine 1 .*: no token/.test(reason),
    );
  };
  while (!(await isNamed())) await Bun.sleep(20);
  second.engine.resume();
  await open;
  await bed.stop();
}, 60_000);

test("waiting: an update that an engine does not answer is listed with its bound", async () => {
  const fixture = await ControlFixture.open();
  const held = Promise.withResolvers<void>();
  fixture.worker(1).gate = held.promise;
  const answer = fixture.send("/update_weights", { weight_dir: "/w" });
  await fixture.steps(5);
  const { waits } = fixture.sidecar;
  expect(waits.open).toMatchObject([{ what: "update_weights", forWhom: "engine 1", msMax: 5_000 }]);
  held.resolve();
  await fixture.steps(5);
  expect([(await answer).status, waits.open]).toEqual([200, []]);
});

test("waiting: what waits for a thread has a line with its limit", () => {
  const about = { what: "a job of 9 characters", forWhom: "the tokenizer", reason: "3 wait there" };
  const wait = { ...about, msMax: 600_000, sinceMs: 0 };
  const { bed, view } = watched({ threadWaits: [wait] });
  bed.clock.advance(300_000 - bed.clock.nowMs());
  expect(view.waiting().waiting).toMatchObject([{ kind: "call", state: "ok" }]);
  bed.clock.advance(1);
  expect(view.waiting().waiting).toMatchObject([
    {
      kind: "call",
      state: "slow",
      reason: expect.stringMatching(
        /^a job of 9 characters waits for the tokenizer for \S+ s; 3 wait there; gives up in \S+ s$/,
      ),
    },
  ]);
});

test("waiting: a response without an open engine has a line with its bound", async () => {
  const { later } = new ManualTimers();
  const { bed, view } = watched({ later });
  for (const worker of bed.workers) bed.sidecar.rollout.setReachable(worker, false);
  bed.generate([1, 2], 1);
  await bed.step();
  const line = /^generation waits for an engine for 0 s; none is open; gives up in 3,600 s$/;
  expect(view.waiting().waiting).toContainEqual(
    expect.objectContaining({ name: "no_open_worker", reason: expect.stringMatching(line) }),
  );
});

test("waiting: without an engine, nothing is stuck before a response waits for one", async () => {
  const { bed, view, members } = watched({});
  for (const member of members) member.state = "down";
  const generation = () => view.waiting().waiting.find(({ kind }) => kind === "generation");
  view.look();
  expect(generation()).toMatchObject({
    state: "ok",
    reason: expect.stringMatching(/^no response waits for 0 s: no worker; vllm-0 is down/),
  });
  bed.generate([1, 2], 1);
  expect(generation()).toMatchObject({
    state: "stuck",
    reason: expect.stringMatching(/^1 response waits for/),
  });
});
