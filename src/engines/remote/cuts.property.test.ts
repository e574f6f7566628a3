// A whole rollout over two linked workers while their connections are cut at any byte: every response
// comes out whole, once, in order and bit for bit, and no worker is lost for it.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedWorker, simulatedToken } from "../../../test/faults/simulated/worker.ts";
import { CuttingProxy } from "../../../test/suite/cutting-proxy.ts";
import { clock, listen, open, turn } from "../../../test/suite/link-fixture.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { fold32 } from "../../core/base/hash.ts";
import { groupId, weightEpoch, workerId } from "../../core/base/ids.ts";
import { EmbeddedKvPool } from "../../core/kv/embedded-pool.ts";
import type { Group, GroupSpec } from "../../core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../../core/request/request.ts";
import { Iteration } from "../../core/rollout/iteration.ts";
import type { RunReport } from "../../core/rollout/report.ts";
import { loadCore } from "../../core/wasm/load.ts";
import type { LinkHost } from "./host.ts";
import type { LinkedWorker } from "./worker.ts";

const core = loadCore();
const TOKENS_MAX = 40;
const EPOCH = weightEpoch(0);

interface Scenario {
  readonly sizes: readonly number[];
  readonly slots: number;
  readonly chunkTokens: number;
  readonly lengthSeed: number;
  readonly frameBytes: number;
  /** Bytes after which one connection after another breaks; afterwards none does. */
  readonly cuts: readonly number[];
  readonly dribbles: boolean;
}

const scenarios: fc.Arbitrary<Scenario> = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 5 }), { minLength: 1, maxLength: 4 }),
  slots: fc.integer({ min: 1, max: 4 }),
  chunkTokens: fc.integer({ min: 1, max: TOKENS_MAX }),
  lengthSeed: fc.nat(),
  frameBytes: fc.constantFrom(16, 200, 100_000),
  cuts: fc.array(fc.integer({ min: 1, max: 6_000 }), { maxLength: 12 }),
  dribbles: fc.boolean(),
});

const lengthOf = (scenario: Scenario, id: number) =>
  1 + (fold32(scenario.lengthSeed, id) % TOKENS_MAX);

function groupsOf(scenario: Scenario): GroupSpec[] {
  return scenario.sizes.map((size, i) => ({
    groupId: groupId(`g${i}`),
    prompt: Int32Array.from({ length: 3 + i }, (_, k) => k),
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

interface Linked {
  readonly simulated: SimulatedWorker;
  readonly host: LinkHost;
  readonly proxy: CuttingProxy;
  readonly worker: LinkedWorker;
}

async function link(scenario: Scenario, index: number): Promise<Linked> {
  const simulated = new SimulatedWorker({
    workerId: workerId(index),
    capacity: { slots: scenario.slots, kvTokens: 300, contextTokens: 64, kvBytesPerToken: 8 },
    epoch: EPOCH,
    lengthOf: (request) => lengthOf(scenario, request.requestId),
  });
  const limits = {
    retryMsMin: 1,
    retryMsMax: 4,
    heartbeatMs: 10,
    frameBytesMax: scenario.frameBytes,
  };
  const host = await listen(simulated, { limits });
  const port = Number(new URL(host.url).port);
  const proxy = await CuttingProxy.listen(() => port);
  proxy.dribbles = scenario.dribbles;
  const worker = await open(`ws://127.0.0.1:${proxy.port}`, { limits, id: index });
  return { simulated, host, proxy, worker };
}

async function close({ worker, proxy, host }: Linked): Promise<void> {
  proxy.cutAfterBytes = null;
  await worker.close();
  await host.close();
  await proxy.close();
}

/** Steps both workers until the rollout ends, with something done to the links on the way. */
async function drive(
  scenario: Scenario,
  links: readonly Linked[],
  disturb: (turnIndex: number) => void,
): Promise<{ report: RunReport; done: Group[] }> {
  const done: Group[] = [];
  let report: RunReport | null = null;
  let failure: unknown = null;
  const time = new ManualClock();
  const iteration = new Iteration({
    groups: groupsOf(scenario),
    workers: links.map((one) => one.worker),
    policy: "seer",
    draft: "grouped",
    chunkTokens: scenario.chunkTokens,
    epoch: EPOCH,
    deterministic: true,
    pool: new EmbeddedKvPool({ clock: time, memoryBytesMax: 1_000_000, disk: null }),
    clock: time,
    core,
    onGroup: (group) => done.push(group),
    onFailed: ({ response }) => {
      throw new Error(response.refusal?.message);
    },
  });
  iteration.run().then(
    (value) => {
      report = value;
    },
    (error) => {
      failure = error;
    },
  );
  const endMs = clock.nowMs() + 20_000;
  for (let i = 0; clock.nowMs() < endMs; i += 1) {
    disturb(i);
    for (const { simulated } of links) if (!simulated.isIdle) simulated.step();
    time.advance(1);
    await turn();
    if (failure !== null) throw failure;
    if (report !== null) return { report, done };
  }
  throw new Error("the rollout made no progress");
}

function expectWhole(scenario: Scenario, done: readonly Group[]): void {
  expect(done.length).toBe(scenario.sizes.length);
  for (const { requests } of done) {
    for (const { spec, response } of requests) {
      const wanted = lengthOf(scenario, spec.requestId);
      const tokens = Array.from({ length: wanted }, (_, i) => simulatedToken(spec.requestId, i));
      expect([...response.tokens()]).toEqual(tokens);
      expect([...response.logprobs()]).toEqual(tokens.map((_, i) => -i));
    }
  }
}

test("link: connections cut at any byte lose, repeat and reorder nothing", async () => {
  let cuts = 0;
  let reconnects = 0;
  await fc.assert(
    fc.asyncProperty(scenarios, async (scenario) => {
      const links = [await link(scenario, 0), await link(scenario, 1)];
      let next = 0;
      const { report, done } = await drive(scenario, links, (i) => {
        if (i % 10 !== 5) return;
        for (const { proxy } of links) {
          proxy.cutAfterBytes = scenario.cuts[next] ?? null;
          if (next < scenario.cuts.length) proxy.cut();
          next += 1;
        }
      });
      expect(report.lost_tokens + report.duplicated_tokens).toBe(0);
      expect(report.finished_requests).toBe(report.requests);
      expectWhole(scenario, done);
      for (const one of links) {
        cuts += one.proxy.cuts;
        reconnects += one.worker.linkStats().reconnects;
        await close(one);
      }
    }),
    { numRuns: 30 },
  );
  // The check is of use only if connections did break within frames and sessions did go on.
  expect(cuts).toBeGreaterThan(20);
  expect(reconnects).toBeGreaterThan(20);
}, 180_000);

test("link: when a host restarts its worker has failed, and the rollout continues with the other", async () => {
  const scenario: Scenario = {
    sizes: [4, 4, 4],
    slots: 2,
    chunkTokens: 8,
    lengthSeed: 1,
    frameBytes: 1000,
    cuts: [],
    dribbles: false,
  };
  const lost = new SimulatedWorker({
    workerId: workerId(0),
    capacity: { slots: 2, kvTokens: 300, contextTokens: 64, kvBytesPerToken: 8 },
    epoch: EPOCH,
    lengthOf: (request) => lengthOf(scenario, request.requestId),
  });
  const first = await listen(lost);
  let port = Number(new URL(first.url).port);
  const proxy = await CuttingProxy.listen(() => port);
  const worker = await open(`ws://127.0.0.1:${proxy.port}`);
  const links = [{ simulated: lost, host: first, proxy, worker }, await link(scenario, 1)];
  // The same address, another process: it knows nothing of the session.
  const again = await listen(
    new SimulatedWorker({
      workerId: workerId(0),
      capacity: lost.capacity,
      epoch: EPOCH,
      lengthOf: () => 1,
    }),
  );
  const { report, done } = await drive(scenario, links, (i) => {
    if (i !== 12) return;
    port = Number(new URL(again.url).port);
    proxy.cut();
  });
  expect(report.lost_tokens).toBe(0);
  expectWhole(scenario, done);
  expect(again.stats().sessions).toBe(0);
  const request = { method: "GET", path: "/", query: {}, body: null, nextEpoch: EPOCH } as const;
  expect((await worker.control(request)).status).toBe(502);
  for (const one of links) await close(one);
  await again.close();
}, 180_000);
