// A whole rollout over two linked workers while their connections are cut at any byte: every response comes out whole,
// once, in order and bit for bit. A worker whose connection was cut is opened again, and no request is blamed for it.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { CuttingProxy } from "../../../test/faults/cutting-proxy.ts";
import { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import { clock, listen, open } from "../../../test/suite/link-fixture.ts";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { EPOCH, world } from "../../../test/suite/rollout-bed.ts";
import { tokensOf } from "../../../test/suite/simulated-runs.ts";
import { fold32 } from "../../core/base/hash.ts";
import { groupId, workerId } from "../../core/base/ids.ts";
import type { Group, GroupSpec } from "../../core/request/buffer.ts";
import type { Rollout } from "../../core/rollout/rollout.ts";
import type { LinkHost } from "./host.ts";
import type { LinkLimits } from "./limits.ts";
import type { LinkedWorker } from "./worker.ts";

const TOKENS_MAX = 40;

interface Scenario {
  readonly sizes: readonly number[];
  readonly slots: number;
  readonly chunkTokens: number;
  readonly lengthSeed: number;
  readonly partBytes: number;
  /** Bytes after which one connection after another breaks; afterwards none does. */
  readonly cuts: readonly number[];
  readonly dribbles: boolean;
}

const scenarios: fc.Arbitrary<Scenario> = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 4 }),
  slots: fc.integer({ min: 1, max: 4 }),
  chunkTokens: fc.integer({ min: 1, max: TOKENS_MAX }),
  lengthSeed: fc.nat(),
  partBytes: fc.constantFrom(16, 200, 100_000),
  cuts: fc.array(fc.integer({ min: 1, max: 3_000 }), { maxLength: 24 }),
  dribbles: fc.boolean(),
});

/** A case whose first connections break within their handshakes on any machine. */
const BROKEN_EARLY: Scenario = {
  sizes: [2, 2],
  slots: 2,
  chunkTokens: 8,
  lengthSeed: 1,
  partBytes: 200,
  cuts: [1, 100, 250],
  dribbles: false,
};

const lengthOf = (scenario: Scenario, id: number) =>
  1 + (fold32(scenario.lengthSeed, id) % TOKENS_MAX);

function groupsOf(scenario: Scenario): GroupSpec[] {
  return scenario.sizes.map((size, i) => ({
    groupId: groupId(`g${i}`),
    prompt: Int32Array.from({ length: 3 + i }, (_, k) => k),
    size,
    sampling: samplingOf({ seed: 1, tokensMax: TOKENS_MAX }),
  }));
}

/** A host behind a proxy, and the worker that is open there now. */
class Place {
  readonly simulated: SimulatedWorker;
  readonly host: LinkHost;
  readonly proxy: CuttingProxy;
  readonly limits: Partial<LinkLimits>;
  worker: LinkedWorker | null = null;

  private constructor(
    simulated: SimulatedWorker,
    host: LinkHost,
    proxy: CuttingProxy,
    limits: Partial<LinkLimits>,
  ) {
    this.simulated = simulated;
    this.host = host;
    this.proxy = proxy;
    this.limits = limits;
  }

  static async open(scenario: Scenario): Promise<Place> {
    const simulated = new SimulatedWorker({
      workerId: workerId(0),
      capacity: { slots: scenario.slots, kvTokens: 300, contextTokens: 64, kvBytesPerToken: 8 },
      epoch: EPOCH,
      lengthOf: (request) => lengthOf(scenario, request.requestId),
    });
    const limits = {
      retryMsMin: 1,
      retryMsMax: 4,
      heartbeatMs: 10,
      kvPartBytes: scenario.partBytes,
    };
    const host = await listen(simulated, { limits });
    const proxy = await CuttingProxy.before(host.url);
    proxy.dribbles = scenario.dribbles;
    proxy.cutAfterBytes = scenario.cuts[0] ?? null;
    return new Place(simulated, host, proxy, limits);
  }

  async serve(rollout: Rollout, id: number): Promise<void> {
    const worker = await open(this.proxy.url, { limits: this.limits, id });
    this.worker = worker;
    rollout.addWorker(worker);
  }

  async close(): Promise<void> {
    this.proxy.cutAfterBytes = null;
    await this.worker?.close();
    await this.host.close();
    await this.proxy.close();
  }
}

/** Steps both workers until the rollout ends, with something done to the links on the way; opens again what fails. */
async function drive(
  scenario: Scenario,
  places: readonly Place[],
  disturb: (turnIndex: number, rollout: Rollout) => void,
) {
  const done: Group[] = [];
  const problems: unknown[] = [];
  let [opened, failures] = [0, 0];
  const serve = (place: Place) => {
    opened += 1;
    place.serve(rollout, opened).catch((error) => problems.push(error));
  };
  const { rollout, steps, threw } = world({
    policy: "seer",
    chunkTokens: scenario.chunkTokens,
    listener: {
      groupFinished: (group) => done.push(group),
      workerFailed: (worker) => {
        failures += 1;
        const place = places.find((one) => one.worker === worker);
        if (place !== undefined) serve(place);
      },
      quarantined: (request) => problems.push(request.response.refusal?.message),
    },
  });
  for (const group of groupsOf(scenario)) rollout.submit(group);
  for (const place of places) serve(place);
  const endMs = clock.nowMs() + 120_000;
  for (let i = 0; done.length < scenario.sizes.length; i += 1) {
    if (clock.nowMs() > endMs) throw new Error("the rollout made no progress");
    disturb(i, rollout);
    const areAllOpen = rollout.workers.length === places.length;
    for (const { simulated } of places) {
      // Without a worker to run on, an engine still answers for the session before.
      if (!simulated.isIdle && (areAllOpen || i % 50 === 0)) simulated.step();
    }
    await steps(1);
    expect([...problems, ...threw]).toEqual([]);
  }
  rollout.stop();
  return { rollout, done, failures };
}

function expectWhole(scenario: Scenario, done: readonly Group[]): void {
  expect(done.length).toBe(scenario.sizes.length);
  for (const { requests } of done) {
    for (const { spec, response } of requests) {
      const tokens = [...tokensOf(spec, 0, lengthOf(scenario, spec.requestId))];
      expect([...response.tokens()]).toEqual(tokens);
      expect([...response.logprobs()]).toEqual(tokens.map((_, i) => -i));
    }
  }
}

test("link: connections cut at any byte lose, repeat and reorder nothing, and no request is a suspect", async () => {
  let cuts = 0;
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const places = [await Place.open(scenario), await Place.open(scenario)];
      const used = new Map<Place, number>();
      let next = 0;
      let isCutRunning = false;
      const { rollout, done, failures } = await drive(scenario, places, (i, { requests }) => {
        for (const request of requests) expect(request.attempts).toBeNull();
        for (const place of places) {
          // One is cut while it runs a request, which cannot end before that failure is seen.
          if (!isCutRunning && place.worker !== null && !place.simulated.isIdle) {
            isCutRunning = true;
            place.proxy.cut();
          }
          const isUsed = place.proxy.cuts > (used.get(place) ?? -1);
          if (!isUsed && i % 10 !== 9) continue;
          used.set(place, place.proxy.cuts);
          place.proxy.cutAfterBytes = scenario.cuts[next] ?? null;
          // Only what is opened from now on breaks after so many bytes.
          if (!isUsed && next < scenario.cuts.length) place.proxy.cut();
          next += 1;
        }
      });
      const { lost_tokens: lost, duplicated_tokens: twice } = rollout.meter.counts;
      expect([lost, twice]).toEqual([0, 0]);
      expectWhole(scenario, done);
      expect(failures).toBeGreaterThan(0);
      for (const place of places) {
        cuts += place.proxy.cuts;
        await place.close();
      }
    }),
    { numRuns: 30, examples: [[BROKEN_EARLY]] },
  );
  expect(cuts).toBeGreaterThan(0);
}, 180_000);
