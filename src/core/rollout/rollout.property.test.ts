// The rollout against simulated workers: whatever the policy, the budgets and the faults, every
// response comes out whole, once, in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedWorker, simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { fold32 } from "../base/hash.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { DRAFT_MODES } from "../draft/registry.ts";
import { EmbeddedKvPool } from "../kv/embedded-pool.ts";
import type { Group, GroupSpec } from "../request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../request/request.ts";
import { POLICY_NAMES } from "../schedule/policies.ts";
import { loadCore } from "../wasm/load.ts";
import { Iteration } from "./iteration.ts";
import type { RunReport } from "./report.ts";

const core = loadCore();
const TOKENS_MAX = 60;
const STEPS_MAX = 20_000;

interface Scenario {
  readonly sizes: readonly number[];
  readonly workers: number;
  readonly slots: number;
  readonly kvTokens: number;
  readonly chunkTokens: number;
  readonly policy: (typeof POLICY_NAMES)[number];
  readonly draft: (typeof DRAFT_MODES)[number];
  readonly poolBytes: number;
  readonly lengthSeed: number;
  /** At step `step`, worker `worker` is killed (at least one is left) or evicts. */
  readonly faults: readonly { step: number; worker: number; kind: "kill" | "evict" }[];
}

const scenarios: fc.Arbitrary<Scenario> = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 8 }),
  workers: fc.integer({ min: 1, max: 4 }),
  slots: fc.integer({ min: 1, max: 6 }),
  kvTokens: fc.integer({ min: TOKENS_MAX + 8, max: 400 }),
  chunkTokens: fc.integer({ min: 1, max: TOKENS_MAX + 5 }),
  policy: fc.constantFrom(...POLICY_NAMES),
  draft: fc.constantFrom(...DRAFT_MODES),
  poolBytes: fc.constantFrom(0, 16, 1_000_000),
  lengthSeed: fc.nat(),
  faults: fc.array(
    fc.record({
      step: fc.integer({ min: 0, max: 200 }),
      worker: fc.nat({ max: 3 }),
      kind: fc.constantFrom("kill" as const, "evict" as const),
    }),
    { maxLength: 4 },
  ),
});

function groupsOf(scenario: Scenario): GroupSpec[] {
  return scenario.sizes.map((size, i) => ({
    groupId: groupId(`g${i}`),
    prompt: Int32Array.from({ length: 1 + (i % 5) }, (_, k) => k),
    size,
    sampling: {
      temperature: 1,
      seed: 1,
      tokensMax: TOKENS_MAX,
      stopTokenIds: [],
      ...SAMPLING_DEFAULTS,
    },
  }));
}

/** Steps all workers in turn until the rollout ends; returns null when it makes no progress. */
async function drive(scenario: Scenario): Promise<{
  report: RunReport;
  done: Group[];
  kvExceeded: boolean;
} | null> {
  const epoch = weightEpoch(0);
  const clock = new ManualClock();
  const done: Group[] = [];
  const capacity = {
    slots: scenario.slots,
    kvTokens: scenario.kvTokens,
    contextTokens: TOKENS_MAX + 8,
    kvBytesPerToken: 8,
  };
  const workers = Array.from(
    { length: scenario.workers },
    (_, i) =>
      new SimulatedWorker({
        workerId: workerId(i),
        capacity,
        epoch,
        lengthOf: (r) => 1 + (fold32(scenario.lengthSeed, r.requestId) % (TOKENS_MAX + 10)),
      }),
  );
  const iteration = new Iteration({
    groups: groupsOf(scenario),
    workers,
    policy: scenario.policy,
    draft: scenario.draft,
    chunkTokens: scenario.chunkTokens,
    epoch,
    deterministic: true,
    pool: new EmbeddedKvPool({ clock, memoryBytesMax: scenario.poolBytes, disk: null }),
    clock,
    core,
    onGroup: (group) => done.push(group),
    onFailed: () => {},
  });
  let report: RunReport | null = null;
  let failure: unknown = null;
  iteration.run().then(
    (value) => {
      report = value;
    },
    (error) => {
      failure = error;
    },
  );
  let kvExceeded = false;
  let alive = scenario.workers;
  for (let step = 0; step < STEPS_MAX; step += 1) {
    for (const fault of scenario.faults) {
      const worker = workers[fault.worker];
      if (fault.step !== step || worker === undefined) continue;
      if (fault.kind === "evict") worker.evictOne();
      else if (alive > 1 && !worker.isDead) {
        // One that dies before it has made a token looks as if it died of its request.
        worker.step();
        worker.kill();
        alive -= 1;
      }
    }
    for (const worker of workers) {
      worker.step();
      if (worker.kvTokensUsed > scenario.kvTokens) kvExceeded = true;
    }
    clock.advance(1);
    await Promise.resolve();
    await new Promise<void>((resolve) => setImmediate(resolve));
    if (failure !== null) throw failure;
    if (report !== null) return { report, done, kvExceeded };
  }
  return null;
}

test("rollout: every response comes out whole, once and in order, whatever fails", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const outcome = await drive(scenario);
      if (outcome === null) throw new Error("the rollout made no progress");
      const { report, done, kvExceeded } = outcome;
      expect(done.length).toBe(scenario.sizes.length);
      expect(report.finished_requests).toBe(report.requests);
      expect(report.lost_tokens).toBe(0);
      expect(report.duplicated_tokens).toBe(0);
      expect(kvExceeded).toBe(false);
      for (const group of done) {
        for (const request of group.requests) {
          const id = request.spec.requestId;
          const wanted = Math.min(
            TOKENS_MAX,
            1 + (fold32(scenario.lengthSeed, id) % (TOKENS_MAX + 10)),
          );
          expect(request.response.length).toBe(wanted);
          const tokens = [...request.response.tokens()];
          expect(tokens).toEqual(tokens.map((_, position) => simulatedToken(id, position)));
          const inChunks = request.response.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
          expect(inChunks).toBe(wanted);
        }
      }
    }),
    { numRuns: 1500 },
  );
}, 180_000);

test("rollout: admission by KV budget leaves nothing to preempt under divided and seer", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const policy = scenario.policy === "group" ? "seer" : scenario.policy;
      const outcome = await drive({ ...scenario, policy, faults: [] });
      expect(outcome?.report.preemptions).toBe(0);
    }),
    { numRuns: 300 },
  );
}, 180_000);
