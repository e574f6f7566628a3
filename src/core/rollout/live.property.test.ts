// The rollout as a sidecar uses it: requests join and are given up, it is paused and goes on, weights change,
// workers die and come; and every response is still whole, once, in order.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedWorker, simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { fold32 } from "../base/hash.ts";
import { groupId, type WeightEpoch, weightEpoch, workerId } from "../base/ids.ts";
import { DRAFT_MODES } from "../draft/registry.ts";
import { EmbeddedKvPool } from "../kv/embedded-pool.ts";
import type { Group, Request } from "../request/buffer.ts";
import { drawKey, SAMPLING_DEFAULTS } from "../request/request.ts";
import { POLICY_NAMES } from "../schedule/policies.ts";
import { loadCore } from "../wasm/load.ts";
import type { PauseMode } from "./pause.ts";
import { Rollout } from "./rollout.ts";

const core = loadCore();
const TOKENS_MAX = 40;
const KV_TOKENS = 200;
const GROUPS = 4;

const acts = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("join" as const),
      group: fc.nat(GROUPS - 1),
      divisible: fc.boolean(),
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant("steps" as const),
      count: fc.integer({ min: 1, max: 20 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("end" as const),
      request: fc.nat(50),
      reason: fc.constantFrom("abort" as const, "stop" as const),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("close" as const), group: fc.nat(GROUPS - 1) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("pause" as const),
      mode: fc.constantFrom<PauseMode>("keep", "wait", "abort"),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("advance" as const) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("kill" as const), worker: fc.nat(3) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("evict" as const), worker: fc.nat(3) }) },
);

const scenarios = fc.record({
  policy: fc.constantFrom(...POLICY_NAMES),
  draft: fc.constantFrom(...DRAFT_MODES),
  chunkTokens: fc.integer({ min: 1, max: 12 }),
  slots: fc.integer({ min: 1, max: 4 }),
  acts: fc.array(acts, { minLength: 1, maxLength: 40 }),
});

type Scenario = typeof scenarios extends fc.Arbitrary<infer T> ? T : never;

class World {
  readonly clock = new ManualClock();
  readonly workers: SimulatedWorker[] = [];
  readonly requests: Request[] = [];
  readonly told = new Map<Request, number[]>();
  readonly finished = new Map<Request, number>();
  readonly groupsFinished = new Set<Group>();
  readonly open = new Map<number, Group>();
  readonly rollout: Rollout;
  readonly #scenario: Scenario;
  broken: unknown = null;
  #epoch: WeightEpoch = weightEpoch(0);
  #groups = 0;

  constructor(scenario: Scenario) {
    this.#scenario = scenario;
    this.rollout = new Rollout({
      ...scenario,
      epoch: this.#epoch,
      pool: new EmbeddedKvPool({ clock: this.clock, memoryBytesMax: 1000, disk: null }),
      clock: this.clock,
      core,
      listener: {
        tokens: (request, offset) => {
          const heard = this.told.get(request) ?? [];
          expect(offset).toBe(heard.length);
          heard.push(...request.response.tokens(offset));
          this.told.set(request, heard);
        },
        finished: (request) => this.finished.set(request, (this.finished.get(request) ?? 0) + 1),
        restarted: (request) => this.told.set(request, []),
        groupFinished: (group) => this.groupsFinished.add(group),
        stats() {},
        workerFailed() {},
        quarantined: (request) => {
          this.broken ??= new Error(request.response.refusal?.message);
        },
        threw: (error) => {
          this.broken = error;
        },
        broken: (error) => {
          this.broken = error;
        },
      },
    });
    for (let i = 0; i < 2; i += 1) this.addWorker();
  }

  addWorker(): void {
    const worker = new SimulatedWorker({
      workerId: workerId(this.workers.length),
      capacity: {
        slots: this.#scenario.slots,
        kvTokens: KV_TOKENS,
        contextTokens: TOKENS_MAX + 8,
        kvBytesPerToken: 8,
      },
      epoch: this.#epoch,
      lengthOf: ({ requestId }) => lengthOf(requestId),
    });
    this.workers.push(worker);
    this.rollout.addWorker(worker);
  }

  join(index: number, divisible: boolean): void {
    let group = this.open.get(index);
    if (group === undefined) {
      group = this.rollout.open(groupId(`g${this.#groups}`), Int32Array.of(1, 2, 3));
      this.#groups += 1;
      this.open.set(index, group);
    }
    const sampling = {
      temperature: 1,
      seed: 1,
      tokensMax: TOKENS_MAX,
      stopTokenIds: [],
      ...SAMPLING_DEFAULTS,
    };
    const draw = drawKey(1, "", this.requests.length);
    this.requests.push(this.rollout.join(group, { sampling, draw, divisible, priority: 0 }));
  }

  close(index: number): void {
    const group = this.open.get(index);
    this.open.delete(index);
    if (group !== undefined) this.rollout.close(group);
  }

  advance(): void {
    this.#epoch = weightEpoch(this.#epoch + 1);
    this.rollout.advance(this.#epoch);
  }

  kill(index: number): void {
    const worker = this.workers[index % this.workers.length];
    // Its death would look like that of a request that workers die of: poison.property.test.ts has those.
    if (worker !== undefined && !this.requests.some((r) => isOnProbation(r, worker))) worker.kill();
    if (this.workers.every((worker) => worker.isDead)) this.addWorker();
  }

  async steps(count: number): Promise<void> {
    for (let i = 0; i < count; i += 1) {
      for (const worker of this.workers) {
        worker.step();
        if (!worker.isDead) expect(worker.kvTokensUsed).toBeLessThanOrEqual(KV_TOKENS);
      }
      this.clock.advance(1);
      await new Promise<void>((resolve) => setImmediate(resolve));
      if (this.broken !== null) throw this.broken;
    }
  }

  /** Steps until it is so. */
  async until(isSo: () => boolean): Promise<void> {
    for (let i = 0; i < 3000 && !isSo(); i += 1) await this.steps(1);
    if (!isSo()) throw new Error("no progress");
  }
}

function isOnProbation(request: Request, { workerId }: SimulatedWorker): boolean {
  return request.workerId === workerId && request.attempts?.isOnProbation === true;
}

function lengthOf(id: number): number {
  return 1 + (fold32(7, id) % (TOKENS_MAX + 10));
}

async function play(world: World, act: Scenario["acts"][number]): Promise<void> {
  switch (act.kind) {
    case "join":
      world.join(act.group, act.divisible);
      return;
    case "steps":
      await world.steps(act.count);
      return;
    case "end": {
      const request = world.requests[act.request % Math.max(1, world.requests.length)];
      if (request !== undefined) world.rollout.end(request, act.reason);
      return;
    }
    case "close":
      world.close(act.group);
      return;
    case "pause": {
      let isPaused = false;
      void world.rollout.pause(act.mode).then(() => {
        isPaused = true;
      });
      // Whoever comes during a pause waits for its end.
      world.join(0, true);
      const late = world.requests.at(-1);
      await world.until(() => isPaused);
      await world.steps(3);
      expect(world.rollout.isQuiet).toBe(true);
      expect(late?.response.length).toBe(0);
      if (act.mode !== "keep") expect(world.rollout.unfinished).toBe(1);
      world.rollout.resume();
      return;
    }
    case "advance":
      world.advance();
      return;
    case "kill":
      world.kill(act.worker);
      return;
    case "evict":
      world.workers[act.worker % world.workers.length]?.evictOne();
      return;
  }
}

test("rollout: whatever comes, goes and changes while it runs, every response is whole, once and in order", async () => {
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const world = new World(scenario);
      for (const act of scenario.acts) await play(world, act);
      for (const index of [...world.open.keys()]) world.close(index);
      await world.until(() => world.rollout.unfinished === 0);
      await world.steps(2);
      expect(world.rollout.isQuiet).toBe(true);
      for (const request of world.requests) {
        const { response, spec } = request;
        const tokens = [...response.tokens()];
        expect(tokens).toEqual(
          tokens.map((_, position) => simulatedToken(spec.requestId, position)),
        );
        expect(world.told.get(request) ?? []).toEqual(tokens);
        expect(world.finished.get(request)).toBe(1);
        expect(world.groupsFinished.has(request.group)).toBe(true);
        const whole = Math.min(TOKENS_MAX, lengthOf(spec.requestId));
        if (tokens.length !== whole) expect(response.finish).not.toBe("length");
        expect(tokens.length).toBeLessThanOrEqual(whole);
        const inChunks = response.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
        expect(inChunks).toBe(tokens.length);
        const epochs = response.chunks.map((chunk) => chunk.epoch);
        expect(epochs).toEqual(epochs.toSorted((a, b) => a - b));
      }
      for (const worker of world.workers) if (!worker.isDead) expect(worker.kvTokensUsed).toBe(0);
    }),
    { numRuns: 3000 },
  );
}, 180_000);
