// What the link's tests share: a host and a worker on it, waits by condition. Used by tests only.

import { weightEpoch, workerId } from "../../src/core/base/ids.ts";
import type { Worker } from "../../src/core/rollout/worker.ts";
import type { SidecarIdentity } from "../../src/engines/remote/dial.ts";
import { LinkHost, type LinkHostOptions } from "../../src/engines/remote/host.ts";
import type { LinkLimits } from "../../src/engines/remote/limits.ts";
import { type LinkedWorker, openLinkWorker } from "../../src/engines/remote/worker.ts";

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

export function listen(worker: Worker, options: Partial<LinkHostOptions> = {}): Promise<LinkHost> {
  return LinkHost.listen({
    worker,
    modelId: "simulated",
    vocabularySize: 1000,
    epoch: weightEpoch(0),
    host: "127.0.0.1",
    port: 0,
    token: null,
    clock,
    limits: QUICK,
    ...options,
  });
}

export function open(
  url: string,
  options: {
    token?: string;
    limits?: Partial<LinkLimits>;
    id?: number;
    reach?: (lost: string | null) => void;
    sidecar?: SidecarIdentity;
  } = {},
): Promise<LinkedWorker> {
  const { id = 0, limits = {}, ...rest } = options;
  return openLinkWorker({
    workerId: workerId(id),
    url,
    clock,
    limits: { ...QUICK, ...limits },
    ...rest,
  });
}

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
export async function refused(words: string, ...asked: Parameters<typeof open>): Promise<void> {
  const refusal = async () => String(await open(...asked).catch((error: Error) => error.message));
  while (!(await refusal()).includes(words)) await turn();
}

/** All that was sent before, either way, has been heard when this resolves. */
export async function settled(worker: Worker): Promise<void> {
  await worker.perform({ kind: "canary", adapter: null }, weightEpoch(0));
}
