// Requests that workers die of, among others, on simulated workers that are also killed from outside: those requests
// end with a refusal after two workers, and every other response is whole, once and in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { OpenWorker, world } from "../../../test/suite/rollout-bed.ts";
import { tokensOf } from "../../../test/suite/simulated-runs.ts";
import { fold32 } from "../base/hash.ts";
import { groupId } from "../base/ids.ts";
import type { RolloutRequest } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import { POLICY_NAMES } from "../schedule/policies.ts";
import type { WorkerCommand } from "./worker.ts";

const TOKENS_MAX = 40;
/** Prompts that begin with it kill a worker at their first step. */
const POISON = 666;
/** A worker that died is there again after so many steps. */
const REOPEN_STEPS = 5;

/** Dies in its next step once it has been given poison. */
class MortalWorker extends OpenWorker {
  #isPoisoned = false;

  override send(commands: readonly WorkerCommand[]): void {
    super.send(commands);
    this.#isPoisoned ||= commands.some(
      (command) => command.kind === "run" && command.request.prompt[0] === POISON,
    );
  }

  override step(): void {
    if (this.#isPoisoned) this.kill();
    else super.step();
  }
}

const scenarios = fc.record({
  policy: fc.constantFrom(...POLICY_NAMES),
  workers: fc.integer({ min: 1, max: 4 }),
  slots: fc.integer({ min: 1, max: 4 }),
  chunkTokens: fc.integer({ min: 1, max: 20 }),
  requests: fc.array(fc.record({ isPoison: fc.nat(9), divisible: fc.boolean() }), {
    minLength: 1,
    maxLength: 25,
  }),
  kills: fc.array(fc.record({ step: fc.nat(120), worker: fc.nat(3) }), { maxLength: 6 }),
});

type Scenario = typeof scenarios extends fc.Arbitrary<infer T> ? T : never;

function lengthOf(id: number): number {
  return 1 + (fold32(9, id) % TOKENS_MAX);
}

async function play(scenario: Scenario) {
  const requests: RolloutRequest[] = [];
  const told = new Map<RolloutRequest, number[]>();
  const quarantined: RolloutRequest[] = [];
  const due: { atMs: number; act: () => void }[] = [];
  const after = (ms: number, act: () => void) => due.push({ atMs: clock.nowMs() + ms, act });
  const { rollout, clock, workers, join, steps, threw } = world({
    ...scenario,
    newWorker: MortalWorker,
    lengthOf: ({ requestId }) => lengthOf(requestId),
    later: (act, ms) => {
      // A step is 50 ms.
      after(ms / 50, act);
      return () => {};
    },
    listener: {
      tokens: (request, offset) => {
        const heard = told.get(request) ?? [];
        expect(offset).toBe(heard.length);
        heard.push(...request.response.tokens(offset));
        told.set(request, heard);
      },
      restarted: (request) => told.set(request, []),
      workerFailed: ({ workerId: as }) => after(REOPEN_STEPS, () => open(as)),
      quarantined: (request) => quarantined.push(request),
    },
  });
  const open = (as: number) => rollout.addWorker(join({ kvTokens: 300, as }));
  for (let i = 0; i < scenario.workers; i += 1) open(i);
  for (const [number, { isPoison, divisible }] of scenario.requests.entries()) {
    const prompt = Int32Array.of(isPoison === 0 ? POISON : 1, number);
    const group = rollout.open(groupId(`g${number}`), prompt);
    const draw = drawKey(1, "", number);
    const sampling = samplingOf({ seed: 1, tokensMax: TOKENS_MAX });
    requests.push(rollout.join(group, { sampling, draw, divisible, priority: 0 }));
    rollout.close(group);
  }
  /** Kills a worker, unless that looks like a death by a request. */
  const kill = (worker: OpenWorker | undefined) => {
    const isOnProbation = requests.some(
      (r) => r.workerId === worker?.workerId && r.attempts?.isOnProbation === true,
    );
    if (!isOnProbation) worker?.kill();
  };
  for (let step = 0; rollout.unfinished > 0; step += 1) {
    if (step > 5000) throw new Error("no progress");
    for (const one of scenario.kills) {
      if (one.step === step) kill(workers[one.worker % workers.length]);
    }
    await steps(1);
    const now = due.filter(({ atMs }) => atMs <= clock.nowMs());
    for (const one of now) due.splice(due.indexOf(one), 1);
    for (const { act } of now) act();
  }
  expect(threw).toEqual([]);
  return { requests, told, quarantined, rollout };
}

test("rollout: requests that workers die of end with a refusal, and every other response is whole", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const { requests, told, quarantined, rollout } = await play(scenario);
      for (const [number, request] of requests.entries()) {
        const { response, spec } = request;
        if (scenario.requests[number]?.isPoison === 0) {
          expect(response.finish).toBe("abort");
          expect(response.refusal?.status).toBe(502);
          expect(response.refusal?.message).toContain(`request ${spec.requestId} `);
          expect(request.attempts?.total).toBeGreaterThanOrEqual(2);
          expect(quarantined.filter((one) => one === request).length).toBe(1);
          if (scenario.kills.length === 0) expect(request.attempts?.total).toBe(2);
          continue;
        }
        expect(response.refusal).toBeNull();
        const whole = [...tokensOf(spec, 0, lengthOf(spec.requestId))];
        expect([...response.tokens()]).toEqual(whole);
        expect(told.get(request)).toEqual(whole);
      }
      expect(rollout.meter.counts.quarantined_requests).toBe(quarantined.length);
    }),
    { numRuns: 400 },
  );
}, 180_000);
