// What a sidecar knows of a host that it cannot reach: whether only the connection broke, its process has ended, or the
// network is silent, which costs time alone.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { CuttingProxy } from "../../../test/faults/cutting-proxy.ts";
import { behindDeadProxy } from "../../../test/suite/dead-proxy.ts";
import {
  closeAll,
  eventsOf,
  listen,
  open,
  proxyBefore,
  settled,
  tokensIn,
  until,
} from "../../../test/suite/link-fixture.ts";
import { newSimulated, newSpec, runOf, tokensOf } from "../../../test/suite/simulated-runs.ts";
import type { LinkLimits } from "./limits.ts";

setDefaultTimeout(180_000);

afterEach(closeAll);

async function bedWith(limits: Partial<LinkLimits> = {}) {
  const simulated = newSimulated();
  const proxy = await proxyBefore((await listen(simulated)).url);
  /** Reports about the connection, in order. */
  const told: (string | null)[] = [];
  const worker = await open(proxy.url, { limits, reach: (lost) => told.push(lost) });
  return { simulated, proxy, worker, told, events: eventsOf(worker) };
}

test("reach: a connection that breaks while the host lives is a cut, reported before the failure", async () => {
  const { simulated, proxy, worker, told, events } = await bedWith();
  worker.send([runOf(newSpec(1), { chunkTokens: 8 })]);
  await settled(worker);
  proxy.cut();
  await until(() => events.length > 0, "the worker has failed");
  expect(told).toEqual([expect.stringContaining("the connection was lost")]);
  const message = expect.stringContaining("is lost");
  expect(events).toEqual([{ kind: "failed", message, isCut: true }]);
  await until(() => simulated.kvTokensUsed === 0, "the host releases what it ran");
});

test("reach: a host is looked for without the environment's proxy", async () => {
  const { proxy, worker, events } = await bedWith();
  await behindDeadProxy(async () => {
    worker.send([runOf(newSpec(1), { chunkTokens: 8 })]);
    await settled(worker);
    proxy.cut();
    await until(() => events.length > 0, "the worker has failed");
  });
  expect(events).toMatchObject([{ kind: "failed", isCut: true }]);
});

test("reach: a host whose process has ended, or is another one, has failed and was not cut", async () => {
  for (const isReplaced of [false, true]) {
    const simulated = newSimulated();
    const first = await listen(simulated);
    const second = await listen(newSimulated());
    let { port } = new URL(first.url);
    const proxy = await CuttingProxy.listen(() => Number(port));
    const events = eventsOf(await open(proxy.url));
    port = new URL(second.url).port;
    if (isReplaced) proxy.cut();
    else await proxy.close();
    await until(() => events.length > 0, "the worker has failed");
    expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("is lost") }]);
    if (isReplaced) await proxy.close();
  }
});

test("reach: a silent network is reported before it is given up, and loses nothing when it heals", async () => {
  const { simulated, proxy, worker, told, events } = await bedWith({ quietMsMax: 100 });
  worker.send([runOf(newSpec(1), { chunkTokens: 8 })]);
  await settled(worker);
  proxy.stall();
  for (let i = 0; i < 9; i += 1) simulated.step();
  await until(() => typeof told.at(-1) === "string", "the silence");
  expect(told.at(-1)).toMatch(/^silent for \d+ ms$/);
  expect(events).toEqual([]);
  proxy.heal();
  await until(() => events.some(({ kind }) => kind === "chunk_done"), "the chunk's end");
  await until(() => told.at(-1) === null, "the end of the silence");
  expect(tokensIn(events, 1)).toEqual([...tokensOf(newSpec(1), 0, 8)]);
});
