// The fault tests: some seconds' worth of seeds here, any number with `npm run faults:simulate`. And that the
// checkers would see it if something were wrong.

import { expect, spyOn, test } from "bun:test";
import { join } from "node:path";
import type { WorkerEvent } from "../../../src/core/rollout/worker.ts";
import MUTATIONS from "../mutations.json";
import { FaultyLink } from "./link.ts";
import { planSidecar } from "./plan.ts";
import { runSidecarPlan } from "./run.ts";
import { SimulatedWorker } from "./worker.ts";

const SEEDS = 150;
/**
 * Seeds that found faults: engines that missed a wake-up, or slept while the sidecar restarted, served; a trainer's canary
 * of the next weights judged the present ones; a part of an update that all engines refused was forgotten.
 */
const FOUND_SEEDS = [14675, 30518, 42275, 42287, 53620, 59237, 61981, 65203, 76546, 81037, 401405];

test("faults: a whole sidecar answers every call of its trainer, with tokens of the weights that it names", async () => {
  for (const seed of [...Array.from({ length: SEEDS }, (_, i) => i + 1), ...FOUND_SEEDS]) {
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
  for (const seed of [11, 14, 158]) {
    const first = await runSidecarPlan(planSidecar(seed));
    expect(first.kind).toBe("ok");
    expect(await runSidecarPlan(planSidecar(seed))).toEqual(first);
  }
});

test("faults: plans of all seeds together have every kind of fault, of requests and of updates", () => {
  const plans = Array.from({ length: 200 }, (_, i) => planSidecar(i + 1));
  const iterations = plans.flatMap((plan) => plan.iterations);
  const kinds = (all: readonly (string | boolean)[]) => [...new Set(all)].sort().join();
  expect(kinds(plans.flatMap(({ faults }) => faults.map(({ fault }) => fault.kind)))).toBe(
    "control,cut,disk_full,drafts_lost,evict,kill,lose,pool_lost,repeat,sidecar_killed,slow,stop",
  );
  expect(kinds(plans.map(({ draft }) => draft))).toBe("grouped,off");
  expect(kinds(iterations.map(({ work }) => work))).toBe("requests,rollout,sessions");
  expect(kinds(iterations.map(({ update }) => update))).toBe("aborted,dies,disk,parts,sleep");
  expect(kinds(iterations.map(({ isWhole }) => isWhole))).toBe("false,true");
  expect(kinds(iterations.map(({ stops }) => stops))).toBe("false,true");
});

/** No faults at all: what then goes wrong is the worker's. */
const quiet = planSidecar(3);

test("faults: a stalled engine is reported as a call that is not answered", async () => {
  const step = spyOn(SimulatedWorker.prototype, "step").mockImplementation(() => {});
  try {
    expect(await runSidecarPlan(quiet)).toMatchObject({ kind: "stuck" });
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
    const message = expect.stringMatching(/^token 0 of [\d,]+ is \d+, not/);
    expect(await runSidecarPlan(quiet)).toMatchObject({ kind: "wrong", message });
  } finally {
    spy.mockRestore();
  }
});

function changed(event: WorkerEvent): WorkerEvent {
  return event.kind === "tokens" ? { ...event, tokens: event.tokens.map((t) => t + 1) } : event;
}
