// Attacks the worker link from the middle: between a sidecar and one of its two hosts frames are changed, repeated,
// dropped and made up, in both directions. That worker may fail as often as it likes. The sidecar and the host's
// process live on, every request is answered within a deadline, and when the attack ends the worker serves again.

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { present } from "../../../src/core/base/assert.ts";
import { weightEpoch, workerId } from "../../../src/core/base/ids.ts";
import type { Response } from "../../../src/core/request/response.ts";
import type { LinkHost } from "../../../src/engines/remote/host.ts";
import type { LinkLimits } from "../../../src/engines/remote/limits.ts";
import { openLinkWorker } from "../../../src/engines/remote/worker.ts";
import { WorkerPool } from "../../../src/fleet/pool.ts";
import type { Sidecar } from "../../../src/server/sidecar.ts";
import { clock, listen } from "../../suite/link-fixture.ts";
import { samplingOf } from "../../suite/request-spec.ts";
import { newSidecar } from "../../suite/sidecar-bed.ts";
import { until } from "../http-client.ts";
import { SimulatedWorker } from "../simulated/worker.ts";
import { Mangler } from "./mangler.ts";
import { rounds } from "./scale.ts";

const ROUNDS = rounds(20, 1000);
const REQUESTS = 8;
const TOKENS = 24;
const RETRY_MS_MAX = 10;
const EPOCH = weightEpoch(0);
/** Short limits, since some attacks make the sidecar wait in vain. */
const LIMITS: Partial<LinkLimits> = {
  heartbeatMs: 50,
  quietMsMax: 300,
  silenceMsMax: 1_000,
  stallMsMax: 1_000,
  standstillMsMax: 1_000,
  clearMsMax: 2_000,
  retryMsMin: 5,
  retryMsMax: 50,
};

setDefaultTimeout(ROUNDS * 2_000 + 60_000);

/** Messages during an attack, to explain a failure. */
const told: string[] = [];
let broken: unknown = null;

function newSimulated(index: number): SimulatedWorker {
  return new SimulatedWorker({
    workerId: workerId(index),
    capacity: { slots: 4, kvTokens: 8192, contextTokens: 2048, kvBytesPerToken: 8 },
    epoch: EPOCH,
    lengthOf: () => 10_000,
  });
}

/** A host whose worker is replaced when it fails, as `foretoken worker` does it. */
class Hosted {
  worker = newSimulated(0);
  host: LinkHost | null = null;

  async listen(): Promise<string> {
    this.host = await listen(this.worker, {
      limits: LIMITS,
      events: (event) => {
        told.push(JSON.stringify(event));
        if (event.kind !== "worker_failed") return;
        this.worker = newSimulated(0);
        queueMicrotask(() => this.host?.replace(this.worker, EPOCH));
      },
    });
    return this.host.url;
  }
}

const hosted = new Hosted();
const local = newSimulated(1);
let mangler: Mangler;
let pool: WorkerPool;
let sidecar: Sidecar;
let stepping: ReturnType<typeof setInterval>;

beforeAll(async () => {
  mangler = await Mangler.listen(await hosted.listen());
  stepping = setInterval(() => {
    for (const worker of [hosted.worker, local]) if (!worker.isIdle) worker.step();
  }, 1);
  pool = new WorkerPool({
    sources: [
      {
        name: "attacked",
        keepsWeights: true,
        open: async ({ workerId: id, epoch, reach }) => {
          const options = { workerId: id, url: mangler.url, clock, reach, limits: LIMITS };
          const worker = await openLinkWorker(options);
          if (worker.epoch !== epoch) worker.send([{ kind: "advance", epoch }]);
          return worker;
        },
      },
      { name: "local", keepsWeights: true, open: async () => local },
    ],
    // So that the attacked one is there again for the next round.
    later: (act, ms) => {
      const timer = setTimeout(act, Math.min(ms, RETRY_MS_MAX));
      return () => clearTimeout(timer);
    },
    controlMsMax: 5_000,
    changed: ({ source, state, reason }) => told.push(`${source.name} ${state} ${reason}`),
  });
  sidecar = newSidecar(clock, { chunkTokens: 8 });
  sidecar.observe({
    broken: (error) => {
      broken = error;
    },
  });
  pool.attach(sidecar);
  await pool.open();
});

afterAll(async () => {
  clearInterval(stepping);
  sidecar.rollout.stop();
  await pool.close();
  await mangler.close();
  await hosted.host?.close();
});

/** One response; resolves when it has ended, however it has. */
function ask(n: number): Promise<Response | null> {
  const { promise, resolve } = Promise.withResolvers<Response | null>();
  const asked = sidecar.generate(
    {
      // Two of a kind each, so that drafts go about as well.
      prompt: Int32Array.of((n >> 1) % 1000, 2, 3),
      n: 1,
      sampling: samplingOf({ temperature: 1, seed: n, tokensMax: TOKENS }),
      seeded: false,
      group: null,
      priority: 0,
    },
    { tokens() {}, restarted() {}, finished: () => resolve(asked.requests[0]?.response ?? null) },
  );
  return promise;
}

const about = (what: string) => `${what} ${broken ?? ""}\n${told.slice(-20).join("\n")}`;
const isServing = () => pool.members.every(({ state }) => state === "ready");

test("link: whatever passes between a sidecar and a host, both live and every request is answered", async () => {
  let refused = 0;
  for (let round = 1; round <= ROUNDS; round += 1) {
    mangler.attack(0, 0);
    await until(isServing, () => about(`seed ${round}: the attacked worker serves again`));
    told.length = 0;
    mangler.attack(round, 20 + (round % 7) * 60);
    const ended: (Response | null)[] = [];
    for (let i = 0; i < REQUESTS; i += 1) {
      void ask(round * REQUESTS + i).then((response) => ended.push(response));
    }
    await until(
      () => ended.length === REQUESTS,
      () => about(`seed ${round}: every request`),
    );
    for (const response of ended) {
      const { finish, length, refusal } = present(response, "it was asked for");
      if (refusal !== null) refused += 1;
      // A response is whole, or it is refused and says why.
      else expect(`seed ${round}: ${finish} ${length}`).toBe(`seed ${round}: length ${TOKENS}`);
    }
    expect(broken).toBeNull();
  }
  // The check is of use only if something was changed, and something came out all the same.
  expect(mangler.changed).toBeGreaterThan(0);
  expect(refused).toBeLessThan(ROUNDS * REQUESTS);
  mangler.attack(0, 0);
  await until(isServing, () => about("the attacked worker serves again"));
  const after = await Promise.all(Array.from({ length: REQUESTS }, (_, i) => ask(i)));
  expect(after.map((response) => response?.length)).toEqual(after.map(() => TOKENS));
});
