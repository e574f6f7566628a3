// Engines that can say what weights they have serve together only with the same; whoever comes back with others is
// brought up to date or stays out, and both are named.

import { expect, test } from "bun:test";
import { ControlFixture } from "../../test/suite/control-fixture.ts";
import { type WeightsId, weightsId } from "../core/base/ids.ts";
import type { ControlAnswer } from "../core/rollout/operation.ts";

const OLD = weightsId("f16-01d");
const NEW = weightsId("f16-2e3");
const Q8 = weightsId("q8_0-8");
const GOOD: ControlAnswer = { status: 200, body: {} };
const UPDATE = { update_info: { weights_path: "/step-1" } };

/** Three engines; `held` is what each has whenever it is opened. */
async function open(...held: (WeightsId | null)[]) {
  const fixture = await ControlFixture.open({
    keepsWeights: true,
    weightsOf: (index) => held[index] ?? null,
  });
  /** An update gives the engine these. */
  const takes = (index: number, weights: WeightsId) => {
    const worker = fixture.worker(index);
    worker.script = ({ kind }) => {
      if (kind === "update") {
        worker.weights = weights;
        held[index] = weights;
      }
      return GOOD;
    };
  };
  return { fixture, held, takes, reason: (index: number) => fixture.pool.members[index]?.reason };
}

async function reopen(fixture: ControlFixture, index: number): Promise<void> {
  fixture.worker(index).kill();
  await fixture.retry();
}

test("at the start the weights of the engine that opens first serve", async () => {
  const first = await open(Q8, OLD, null);
  expect(first.fixture.states).toEqual(["ready", "fenced", "ready"]);
  const { status, body } = await first.fixture.call("GET", "/health");
  expect(status).toBe(200);
  expect(body).toMatchObject({
    workers: [
      { name: "engine-0", state: "ready", weights: Q8 },
      { name: "engine-1", state: "fenced", weights: OLD },
      { name: "engine-2", state: "ready", weights: null },
    ],
  });
  expect(first.reason(1)).toBe(
    "has weights f16-01d, engine-0 has q8_0-8: engines of one weight epoch have the same",
  );
});

test("a fenced engine is in neither the rollout nor forgotten: an update that all take brings it in", async () => {
  const { fixture, takes } = await open(OLD, OLD, Q8);
  expect(fixture.sidecar.rollout.workers.length).toBe(2);
  for (const index of [0, 1, 2]) takes(index, NEW);
  expect((await fixture.call("POST", "/update_weights", UPDATE)).status).toBe(200);
  expect(fixture.states).toEqual(["ready", "ready", "ready"]);
});

test("an engine that took an update and has other weights than the rest is fenced, by name", async () => {
  const { fixture, takes, reason } = await open(OLD, OLD, OLD);
  takes(0, Q8);
  takes(1, NEW);
  takes(2, NEW);
  await fixture.call("POST", "/update_weights", UPDATE);
  await fixture.step();
  expect(fixture.states).toEqual(["fenced", "ready", "ready"]);
  expect(reason(0)).toContain("has weights q8_0-8, engine-1 has f16-2e3");
});

test("an engine that came back with stale weights serves only once it was given the current ones", async () => {
  const { fixture, held, takes } = await open(OLD, OLD, OLD);
  for (const index of [0, 1, 2]) takes(index, NEW);
  await fixture.call("POST", "/update_weights", UPDATE);
  // Its process was started anew, with the file that it began with; giving it the update's path changes nothing.
  held[2] = OLD;
  await reopen(fixture, 2);
  expect(fixture.states).toEqual(["ready", "ready", "fenced"]);
  expect(fixture.worker(2).heard.map(({ kind }) => kind)).toEqual(["update"]);
  // One that kept them needs nothing.
  held[1] = NEW;
  await reopen(fixture, 1);
  expect(fixture.states).toEqual(["ready", "ready", "fenced"]);
  expect(fixture.worker(1).heard).toEqual([]);
});

test("a stale engine in the first epoch of a sidecar is refused as well", async () => {
  const { fixture, held, reason } = await open(NEW, NEW, NEW);
  held[1] = OLD;
  await reopen(fixture, 1);
  expect(fixture.states).toEqual(["ready", "fenced", "ready"]);
  expect(reason(1)).toContain("has weights f16-01d, engine-0 has f16-2e3");
});
