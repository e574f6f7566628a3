// The fault tests: some seconds' worth of seeds here, any number with `npm run faults:simulate`. And that the
// checkers would see it if something were wrong.

import { expect, spyOn, test } from "bun:test";
import { join } from "node:path";
import type { WorkerEvent } from "../../../src/core/rollout/worker.ts";
import { loadCore } from "../../../src/core/wasm/load.ts";
import MUTATIONS from "../mutations.json";
import { FaultyLink } from "./link.ts";
import { type FaultPlan, planFaults } from "./plan.ts";
import { runFaultPlan } from "./run.ts";
import { planSidecar } from "./sidecar-plan.ts";
import { runSidecarPlan } from "./sidecar-run.ts";
import { SimulatedWorker } from "./worker.ts";

const SEEDS = 1000;
const SIDECAR_SEEDS = 60;
/**
 * Seeds that found faults: engines that missed a wake-up, or slept while the sidecar restarted, served; a trainer's canary
 * of the next weights judged the present ones; a part of an update that all engines refused was forgotten.
 */
const FOUND_SEEDS = [14675, 30518, 42275, 42287, 53620, 59237, 61981, 65203, 76546, 81037, 401405];
const SEEDS_PER_CORE = 200;

test("faults: whatever is lost, late, slow or repeated, every response comes out whole, once, in order", async () => {
  let core = loadCore();
  for (let seed = 1; seed <= SEEDS; seed += 1) {
    if (seed % SEEDS_PER_CORE === 0) core = loadCore();
    const outcome = await runFaultPlan(planFaults(seed), core);
    if (outcome.kind !== "ok") {
      throw new Error(
        `${outcome.kind}: ${outcome.message}; repeat it: npm run faults:simulate -- --seeds 1 --seed ${seed}`,
      );
    }
  }
}, 180_000);

test("faults: a whole sidecar answers every call of its trainer, with tokens of the weights that it names", async () => {
  for (const seed of [...Array.from({ length: SIDECAR_SEEDS }, (_, i) => i + 1), ...FOUND_SEEDS]) {
    const outcome = await runSidecarPlan(planSidecar(seed));
    expect({ seed, ...outcome }).toMatchObject({ seed, kind: "ok" });
  }
}, 180_000);

test("mutations: the text of each fault of the past is once in its file", async () => {
  for (const { changes } of MUTATIONS) {
    for (const { file, search } of changes) {
      const text = await Bun.file(join(import.meta.dir, "../../../src", file)).text();
      expect({ file, search, count: text.split(search).length - 1 }).toMatchObject({ count: 1 });
    }
  }
});

test("faults: a seed repeats its run to the last token", async () => {
  const core = loadCore();
  const whole = await runSidecarPlan(planSidecar(11));
  expect(await runSidecarPlan(planSidecar(11))).toEqual(whole);
  for (const seed of [3, 14, 159]) {
    const first = await runFaultPlan(planFaults(seed), core);
    expect(first.kind).toBe("ok");
    expect(await runFaultPlan(planFaults(seed), core)).toEqual(first);
  }
});

test("faults: plans of all seeds together have every kind of fault", () => {
  const kinds = new Set<string>();
  for (let seed = 1; seed <= 200; seed += 1) {
    for (const { fault } of planFaults(seed).faults) kinds.add(fault.kind);
  }
  expect([...kinds].sort()).toEqual(
    [
      ...["advance", "cut", "disk_full", "drafts_lost", "end", "evict", "join", "kill", "lose"],
      ...["pause", "pool_lost", "repeat", "sidecar_killed", "slow"],
    ].sort(),
  );
});

/** No faults at all: what then goes wrong is the worker's. */
const quiet: FaultPlan = { ...planFaults(1), faults: [], policy: "seer" };

test("faults: a stalled engine is reported as no progress", async () => {
  const step = spyOn(SimulatedWorker.prototype, "step").mockImplementation(() => {});
  try {
    const outcome = await runFaultPlan(quiet, loadCore());
    expect(outcome.kind).toBe("stuck");
  } finally {
    step.mockRestore();
  }
});

test("faults: a token of another response is reported", async () => {
  const listen = FaultyLink.prototype.listen;
  const spy = spyOn(FaultyLink.prototype, "listen").mockImplementation(function (
    this: FaultyLink,
    listener,
  ) {
    listen.call(this, (epoch, events) => listener(epoch, events.map(changed)));
  });
  try {
    expect(await runFaultPlan(quiet, loadCore())).toMatchObject({
      kind: "wrong",
      message: expect.stringContaining("is another request's or epoch's"),
    });
  } finally {
    spy.mockRestore();
  }
});

function changed(event: WorkerEvent): WorkerEvent {
  return event.kind === "tokens" ? { ...event, tokens: event.tokens.map((t) => t + 1) } : event;
}
