// Properties of admission, on simulated workers that compute nothing: KV is in use while requests wait, no engine
// preempts, and a request that needs a worker's whole KV runs.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { world } from "../../../test/suite/rollout-bed.ts";
import { fold32 } from "../base/hash.ts";
import { groupId } from "../base/ids.ts";
import type { Group, GroupSpec } from "../request/buffer.ts";
import { isDivided, POLICY_NAMES, type PolicyName } from "../schedule/policies.ts";
import type { Figures } from "./figures.ts";

const DIVIDED = POLICY_NAMES.filter(isDivided);
const STEPS_MAX = 50_000;

interface Load {
  readonly policy: PolicyName;
  readonly workers: number;
  readonly slots: number;
  readonly kvTokens: number;
  readonly chunkTokens: number;
  readonly tokensMax: number;
  /** For each prompt, one group of `size` each. */
  readonly prompts: readonly number[];
  readonly size: number;
  readonly lengthOf: (request: number) => number;
}

interface Outcome {
  readonly report: Figures;
  readonly groups: readonly Group[];
  /** Mean share of KV in use over the steps in which requests wait and slots are free. */
  readonly kvShare: number;
  readonly kvExceeded: boolean;
}

function groupsOf({ prompts, size, tokensMax }: Load): GroupSpec[] {
  const sampling = samplingOf({ seed: 1, tokensMax });
  return prompts.map((length, i) => ({
    groupId: groupId(`g${i}`),
    prompt: new Int32Array(length),
    size,
    sampling,
  }));
}

async function drive(load: Load): Promise<Outcome> {
  const groups: Group[] = [];
  const { slots, kvTokens, policy, chunkTokens, lengthOf } = load;
  const { rollout, workers, join, steps, failed, threw } = world({
    policy,
    slots,
    chunkTokens,
    draft: "off",
    contextTokens: kvTokens,
    poolBytes: 1_000_000,
    lengthOf: ({ requestId }) => lengthOf(requestId),
    listener: {
      groupFinished: (group) => groups.push(group),
      quarantined: ({ response }) => failed.push(response.refusal?.message ?? "quarantined"),
    },
  });
  for (const group of groupsOf(load)) rollout.submit(group);
  for (let i = 0; i < load.workers; i += 1) rollout.addWorker(join({ kvTokens }));
  let used = 0;
  let looks = 0;
  let kvExceeded = false;
  for (let step = 0; step < STEPS_MAX && rollout.unfinished > 0; step += 1) {
    await steps(1);
    const running = workers.reduce((sum, worker) => sum + worker.stats().running, 0);
    if (rollout.meter.progress().waiting > 0 && running < slots * workers.length) {
      looks += 1;
      for (const { kvTokensUsed } of workers) used += kvTokensUsed / kvTokens / workers.length;
    }
    kvExceeded ||= workers.some((worker) => worker.kvTokensUsed > kvTokens);
    expect([failed, threw]).toEqual([[], []]);
  }
  expect(rollout.unfinished).toBe(0);
  const report = rollout.meter.figures();
  return { report, groups, kvShare: used / Math.max(1, looks), kvExceeded };
}

/** Lengths with a heavy tail, 20 to 1,000 tokens, mean about 150. */
function heavyTail(request: number): number {
  const chance = (1 + (fold32(7, request) % 1000)) / 1001;
  return Math.min(1000, Math.floor(20 + 60 * (chance ** -0.6 - 0.9)));
}

for (const policy of DIVIDED) {
  test(`admission: under ${policy}, 90 % of the KV is in use while requests wait for it`, async () => {
    const { report, kvShare } = await drive({
      policy,
      workers: 2,
      slots: 128,
      kvTokens: 64 * 32,
      chunkTokens: 1024,
      tokensMax: 1024,
      prompts: Array.from({ length: 30 }, () => 20),
      size: 8,
      lengthOf: heavyTail,
    });
    expect(kvShare).toBeGreaterThan(0.9);
    // KV that the rollout takes back goes to the pool; KV that an engine takes back is computed again.
    expect(report.preemptions).toBe(0);
    expect(report.chunks_ended_early).toBeLessThan(1.5 * report.requests);
  }, 180_000);
}

test("admission: a request that needs a worker's whole KV runs, and nobody waits for ever", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        policy: fc.constantFrom(...DIVIDED),
        workers: fc.integer({ min: 1, max: 3 }),
        slots: fc.integer({ min: 1, max: 12 }),
        kvTokens: fc.integer({ min: 64, max: 300 }),
        chunkTokens: fc.integer({ min: 1, max: 400 }),
        prompts: fc.array(fc.integer({ min: 1, max: 20 }), { minLength: 1, maxLength: 8 }),
        size: fc.integer({ min: 1, max: 5 }),
        lengthSeed: fc.nat(),
      }),
      async ({ lengthSeed, ...given }) => {
        // With the longest prompt, all of its tokens fill a worker to the last one.
        const tokensMax = given.kvTokens - Math.max(...given.prompts);
        const lengthOf = (request: number) =>
          fold32(lengthSeed, request) % 3 === 0
            ? tokensMax + 1
            : 1 + (fold32(lengthSeed, request) % 30);
        const { report, groups, kvExceeded } = await drive({ ...given, tokensMax, lengthOf });
        expect(kvExceeded).toBe(false);
        expect(report.lost_tokens + report.duplicated_tokens).toBe(0);
        for (const { requests } of groups) {
          for (const { spec, response } of requests) {
            expect(response.length).toBe(Math.min(tokensMax, lengthOf(spec.requestId)));
            const wanted = Array.from(response.tokens(), (_, k) =>
              simulatedToken(spec.requestId, k),
            );
            expect([...response.tokens()]).toEqual(wanted);
          }
        }
      },
    ),
    { numRuns: 100 },
  );
}, 180_000);
