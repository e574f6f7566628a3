// What the link's tests share: a host and a worker on it, a proxy between them, waits by condition. Used by tests only.

import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { Worker, WorkerEvent } from "../../src/core/rollout/worker.ts";
import type { SidecarIdentity } from "../../src/engines/remote/dial.ts";
import { LinkHost, type LinkHostOptions } from "../../src/engines/remote/host.ts";
import type { LinkLimits } from "../../src/engines/remote/limits.ts";
import { type LinkedWorker, openLinkWorker } from "../../src/engines/remote/worker.ts";
import { CuttingProxy } from "../faults/cutting-proxy.ts";
import type { SimulatedWorker } from "../faults/simulated/worker.ts";

export const clock = { nowMs: () => performance.now() };

/** Quick enough for tests; every wait is one that a test waits for. */
export const QUICK: Partial<LinkLimits> = {
  openMsMax: 30_000,
  retryMsMin: 1,
  retryMsMax: 8,
  heartbeatMs: 20,
  quietMsMax: 60_000,
  closeMsMax: 200,
};

interface Closed {
  close(): Promise<void>;
}

const opened: Closed[] = [];

async function closing<T extends Closed>(opening: Promise<T>): Promise<T> {
  const one = await opening;
  opened.push(one);
  return one;
}

/** Closes hosts, proxies and workers that were opened here, the last one first. */
export async function closeAll(): Promise<void> {
  for (const one of opened.splice(0).reverse()) await one.close();
}

export function listen(worker: Worker, options: Partial<LinkHostOptions> = {}): Promise<LinkHost> {
  const host = LinkHost.listen({
    worker,
    vocabularySize: 1000,
    epoch: weightEpoch(0),
    host: "127.0.0.1",
    port: 0,
    token: null,
    clock,
    limits: QUICK,
    ...options,
  });
  return closing(host);
}

export const proxyBefore = (url: string): Promise<CuttingProxy> =>
  closing(CuttingProxy.before(url));

interface Asked {
  token?: string;
  limits?: Partial<LinkLimits>;
  id?: number;
  reach?: (lost: string | null) => void;
  sidecar?: SidecarIdentity;
}

export function open(url: string, options: Asked = {}): Promise<LinkedWorker> {
  const { id = 0, limits = {}, ...rest } = options;
  const given = { workerId: workerId(id), url, clock, limits: { ...QUICK, ...limits }, ...rest };
  return closing(openLinkWorker(given));
}

/** Opens the worker while its engine goes on: that may still have to answer for the session before. */
export async function openOn(
  simulated: SimulatedWorker,
  url: string,
  options: Asked = {},
): Promise<LinkedWorker> {
  let isOpen = false;
  const opening = open(url, options).finally(() => {
    isOpen = true;
  });
  await until(() => {
    if (!simulated.isIdle) simulated.step();
    return isOpen;
  }, "a session");
  return await opening;
}

/** Events of a worker from now on. */
export function eventsOf(worker: Worker): WorkerEvent[] {
  const events: WorkerEvent[] = [];
  worker.listen((_, some) => events.push(...some));
  return events;
}

/** Output tokens of a request in what a worker said. */
export const tokensIn = (events: readonly WorkerEvent[], id: number): number[] =>
  events.flatMap((event) =>
    event.kind === "tokens" && event.requestId === id ? [...event.tokens] : [],
  );

export const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Takes turns until the condition holds. */
export async function until(isTrue: () => boolean, what: string): Promise<void> {
  const endMs = performance.now() + 120_000;
  while (!isTrue()) {
    if (performance.now() > endMs) throw new Error(`waited in vain: ${what}`);
    await turn();
  }
}

/** Opens until it is refused in these words: on a slow machine an attempt may have no answer in its time. */
export async function refused(words: string, ...asked: [url: string, Asked]): Promise<void> {
  const refusal = async () => String(await open(...asked).catch((error: Error) => error.message));
  while (!(await refusal()).includes(words)) await turn();
}

/** All that was sent before, either way, has been heard when this resolves. */
export async function settled(worker: Worker): Promise<void> {
  await worker.perform({ kind: "canary", adapter: null }, weightEpoch(0));
}
