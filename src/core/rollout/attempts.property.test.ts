// Requests that workers die of, among others, on simulated workers that are also killed from outside: those requests
// end with a refusal after two workers, and every other response is whole, once and in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedWorker, simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { fold32 } from "../base/hash.ts";
import { groupId, weightEpoch, workerId } from "../base/ids.ts";
import { EmbeddedKvPool } from "../kv/embedded-pool.ts";
import type { Request } from "../request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../request/request.ts";
import { POLICY_NAMES } from "../schedule/policies.ts";
import { loadCore } from "../wasm/load.ts";
import { Rollout } from "./rollout.ts";
import type { WorkerCommand } from "./worker.ts";

const core = loadCore();
const TOKENS_MAX = 40;
/** Prompts that begin with it kill a worker at their first step. */
const POISON = 666;
/** A worker that died is there again after so many steps. */
const REOPEN_STEPS = 5;

/** Dies in its next step once it has been given poison. */
class MortalWorker extends SimulatedWorker {
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

class World {
  readonly clock = new ManualClock();
  readonly requests: Request[] = [];
  readonly told = new Map<Request, number[]>();
  readonly quarantined: Request[] = [];
  readonly rollout: Rollout;
  readonly #scenario: Scenario;
  readonly #workers: MortalWorker[] = [];
  readonly #due: { atMs: number; act: () => void }[] = [];
  broken: unknown = null;
  /** Workers that ended while they ran a request, whatever the cause, by request. */
  readonly deaths = new Map<Request, number>();

  constructor(scenario: Scenario) {
    this.#scenario = scenario;
    this.rollout = new Rollout({
      ...scenario,
      draft: "grouped",
      epoch: weightEpoch(0),
      pool: new EmbeddedKvPool({ clock: this.clock, memoryBytesMax: 1000, disk: null }),
      clock: this.clock,
      core,
      later: (act, ms) => {
        // A step is 50 ms.
        this.#due.push({ atMs: this.clock.nowMs() + ms / 50, act });
        return () => {};
      },
      listener: {
        tokens: (request, offset) => {
          const heard = this.told.get(request) ?? [];
          expect(offset).toBe(heard.length);
          heard.push(...request.response.tokens(offset));
          this.told.set(request, heard);
        },
        finished() {},
        restarted: (request) => this.told.set(request, []),
        groupFinished() {},
        stats() {},
        workerFailed: ({ workerId: id }) => {
          this.#due.push({ atMs: this.clock.nowMs() + REOPEN_STEPS, act: () => this.#open(id) });
        },
        quarantined: (request) => this.quarantined.push(request),
        threw: (error) => {
          this.broken = error;
        },
        broken: (error) => {
          this.broken = error;
        },
      },
    });
    for (let i = 0; i < scenario.workers; i += 1) this.#open(i);
    for (const { isPoison, divisible } of scenario.requests) this.#join(isPoison === 0, divisible);
  }

  #open(id: number): void {
    const worker = new MortalWorker({
      workerId: workerId(id),
      capacity: {
        slots: this.#scenario.slots,
        kvTokens: 300,
        contextTokens: TOKENS_MAX + 8,
        kvBytesPerToken: 8,
      },
      epoch: weightEpoch(0),
      lengthOf: ({ requestId }) => lengthOf(requestId),
    });
    this.#workers[id] = worker;
    this.rollout.addWorker(worker);
  }

  #join(isPoison: boolean, divisible: boolean): void {
    const number = this.requests.length;
    const prompt = isPoison ? Int32Array.of(POISON, number) : Int32Array.of(1, number);
    const group = this.rollout.open(groupId(`g${number}`), prompt);
    const plain = { temperature: 1, seed: 1, tokensMax: TOKENS_MAX, stopTokenIds: [] };
    const sampling = { ...plain, ...SAMPLING_DEFAULTS };
    const draw = drawKey(1, "", number);
    this.requests.push(this.rollout.join(group, { sampling, draw, divisible, priority: 0 }));
    this.rollout.close(group);
  }

  /** Kills a worker, unless that looks like a death by a request. */
  kill(index: number): void {
    const worker = this.#workers[index % this.#workers.length];
    const isOnProbation = this.requests.some(
      (r) => r.workerId === worker?.workerId && r.attempts?.isOnProbation === true,
    );
    if (worker !== undefined && !isOnProbation) worker.kill();
  }

  async step(): Promise<void> {
    for (const worker of this.#workers) worker.step();
    this.clock.advance(1);
    const due = this.#due.filter(({ atMs }) => atMs <= this.clock.nowMs());
    for (const one of due) this.#due.splice(this.#due.indexOf(one), 1);
    for (const { act } of due) act();
    await new Promise<void>((resolve) => setImmediate(resolve));
    if (this.broken !== null) throw this.broken;
  }
}

function lengthOf(id: number): number {
  return 1 + (fold32(9, id) % TOKENS_MAX);
}

test("rollout: requests that workers die of end with a refusal, and every other response is whole", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const world = new World(scenario);
      for (let step = 0; world.rollout.unfinished > 0; step += 1) {
        if (step > 5000) throw new Error("no progress");
        for (const kill of scenario.kills) if (kill.step === step) world.kill(kill.worker);
        await world.step();
      }
      for (const [number, request] of world.requests.entries()) {
        const { response, spec } = request;
        if (scenario.requests[number]?.isPoison === 0) {
          expect(response.finish).toBe("abort");
          expect(response.refusal?.status).toBe(502);
          expect(response.refusal?.message).toContain(`request ${spec.requestId} `);
          expect(request.attempts?.total).toBeGreaterThanOrEqual(2);
          expect(world.quarantined.filter((one) => one === request).length).toBe(1);
          if (scenario.kills.length === 0) expect(request.attempts?.total).toBe(2);
          continue;
        }
        expect(response.refusal).toBeNull();
        const whole = Array.from({ length: lengthOf(spec.requestId) }, (_, position) =>
          simulatedToken(spec.requestId, position),
        );
        expect([...response.tokens()]).toEqual(whole);
        expect(world.told.get(request)).toEqual(whole);
      }
      expect(world.rollout.meter.counts.quarantined_requests).toBe(world.quarantined.length);
    }),
    { numRuns: 400 },
  );
}, 180_000);
