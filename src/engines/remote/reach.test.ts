// What a sidecar knows of a host that it cannot reach: whether nobody listens there, which ends the session, or
// the network is silent, which costs time alone.

import { expect, setDefaultTimeout, test } from "bun:test";
import type { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import { CuttingProxy } from "../../../test/suite/cutting-proxy.ts";
import { listen, open, settled, until } from "../../../test/suite/link-fixture.ts";
import { newSimulated, newSpec, runOf, tokensOf } from "../../../test/suite/worker-suite.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import type { LinkHost } from "./host.ts";
import type { LinkLimits } from "./limits.ts";
import type { LinkedWorker } from "./worker.ts";

// The machine may be busy.
setDefaultTimeout(30_000);

interface Bed {
  readonly simulated: SimulatedWorker;
  readonly host: LinkHost;
  readonly proxy: CuttingProxy;
  readonly worker: LinkedWorker;
  /** What was told of the connection, in order. */
  readonly told: (string | null)[];
  readonly events: WorkerEvent[];
}

async function bedWith(limits: Partial<LinkLimits> = {}): Promise<Bed> {
  const simulated = newSimulated();
  const host = await listen(simulated);
  const port = Number(new URL(host.url).port);
  const proxy = await CuttingProxy.listen(() => port);
  const told: (string | null)[] = [];
  const events: WorkerEvent[] = [];
  const url = `ws://127.0.0.1:${proxy.port}`;
  const worker = await open(url, { limits, reach: (lost) => told.push(lost) });
  worker.listen((_, some) => events.push(...some));
  return { simulated, host, proxy, worker, told, events };
}

const tokensIn = (events: readonly WorkerEvent[]) =>
  events.flatMap((event) => (event.kind === "tokens" ? [...event.tokens] : []));

test("reach: a refused connection ends the session at once", async () => {
  // With the pauses of production a session that waits would wait for 30 s.
  const { host, proxy, worker, told, events } = await bedWith({ retryMsMin: 50, retryMsMax: 2000 });
  worker.send([runOf(newSpec(1))]);
  await settled(worker);
  await proxy.close();
  await until(() => events.length > 0, "the worker has failed");
  expect(told).toEqual([expect.stringContaining("the connection was lost")]);
  expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("ECONNREFUSED") }]);
  await worker.close();
  await host.close();
});

test("reach: a connection that breaks and is opened again is reported, and loses nothing", async () => {
  const { simulated, host, proxy, worker, told, events } = await bedWith();
  worker.send([runOf(newSpec(1), { chunkTokens: 8 })]);
  await settled(worker);
  simulated.step();
  proxy.cut();
  await until(() => told.length === 2, "it is there again");
  expect(told).toEqual([expect.stringContaining("the connection was lost"), null]);
  for (let i = 0; i < 8; i += 1) simulated.step();
  await until(() => events.some(({ kind }) => kind === "chunk_done"), "the chunk's end");
  expect(tokensIn(events)).toEqual([...tokensOf(newSpec(1), 0, 8)]);
  await worker.close();
  await host.close();
  await proxy.close();
});

test("reach: connections that end as soon as they carry the session are one cut, and the session ends with it", async () => {
  const { host, proxy, worker, told, events } = await bedWith({
    retryMsMin: 10,
    retryMsMax: 20,
    resumeMsMax: 400,
  });
  const cutting = setInterval(() => proxy.cut(), 1);
  await until(() => events.length > 0, "the worker has failed");
  clearInterval(cutting);
  expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("is lost") }]);
  // One try each 10 ms or more.
  expect(worker.linkStats().reconnects).toBeLessThan(50);
  expect(told.length).toBeLessThan(100);
  await worker.close();
  await host.close();
  await proxy.close();
});

test("reach: a silent network is reported before it is given up, and loses nothing when it heals", async () => {
  const { simulated, host, proxy, worker, told, events } = await bedWith({ quietMsMax: 100 });
  worker.send([runOf(newSpec(1), { chunkTokens: 8 })]);
  await settled(worker);
  proxy.stall();
  for (let i = 0; i < 9; i += 1) simulated.step();
  await until(() => told.length === 1, "the silence");
  expect(told).toEqual([expect.stringMatching(/^silent for \d+ ms$/)]);
  expect(events).toEqual([]);
  proxy.heal();
  await until(() => events.some(({ kind }) => kind === "chunk_done"), "the chunk's end");
  expect(told.at(-1)).toBeNull();
  expect(worker.linkStats().reconnects).toBe(0);
  expect(tokensIn(events)).toEqual([...tokensOf(newSpec(1), 0, 8)]);
  await worker.close();
  await host.close();
  await proxy.close();
});
