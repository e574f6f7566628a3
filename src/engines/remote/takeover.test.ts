// Who gets a worker that another sidecar has: at once where that one is gone, cannot be heard, or is the same;
// never from one that is there and answers.

import { expect, setDefaultTimeout, test } from "bun:test";
import { CuttingProxy } from "../../../test/faults/cutting-proxy.ts";
import type { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import {
  listen,
  open,
  QUICK,
  refused,
  settled,
  turn,
  until,
} from "../../../test/suite/link-fixture.ts";
import { newSimulated, newSpec, runOf } from "../../../test/suite/simulated-runs.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import type { LinkHost, LinkHostEvent, LinkHostOptions } from "./host.ts";
import type { LinkedWorker } from "./worker.ts";

// The machine may be busy.
setDefaultTimeout(180_000);

const OLD = { id: "old", name: "the old one" };
const NEW = { id: "new", name: "the new one" };

interface Bed {
  readonly simulated: SimulatedWorker;
  readonly host: LinkHost;
  readonly proxy: CuttingProxy;
  readonly old: LinkedWorker;
  /** Events of the old sidecar's worker. */
  readonly events: WorkerEvent[];
  readonly told: LinkHostEvent[];
}

/** The old sidecar runs a request through the proxy. */
async function bedWith(options: Partial<LinkHostOptions> = {}): Promise<Bed> {
  const simulated = newSimulated();
  const told: LinkHostEvent[] = [];
  const host = await listen(simulated, { events: (event) => told.push(event), ...options });
  const port = Number(new URL(host.url).port);
  const proxy = await CuttingProxy.listen(() => port);
  const old = await open(`ws://127.0.0.1:${proxy.port}`, { sidecar: OLD });
  const events: WorkerEvent[] = [];
  old.listen((_, some) => events.push(...some));
  old.send([runOf(newSpec(1))]);
  await settled(old);
  return { simulated, host, proxy, old, events, told };
}

/** Opens the worker while its engine goes on. */
async function openOn({ host, simulated }: Bed, sidecar: typeof OLD): Promise<LinkedWorker> {
  let isOpen = false;
  const opening = open(host.url, { sidecar }).finally(() => {
    isOpen = true;
  });
  while (!isOpen) {
    if (!simulated.isIdle) simulated.step();
    await turn();
  }
  return await opening;
}

const failures = ({ events }: Bed) =>
  events.flatMap((event) => (event.kind === "failed" ? [event.message] : []));

async function close(bed: Bed, next: LinkedWorker): Promise<void> {
  await next.close();
  await bed.old.close();
  await bed.host.close();
  await bed.proxy.close();
}

test("takeover: a session whose connection is gone ends for the next sidecar, and its requests with it", async () => {
  const bed = await bedWith();
  // It can neither go on nor come back: its process was killed.
  await bed.proxy.close();
  const next = await openOn(bed, NEW);
  expect(bed.simulated.kvTokensUsed).toBe(0);
  expect(bed.told).toMatchObject([
    { kind: "session_began", sidecar: "the old one" },
    { kind: "session_ended", sidecar: "the old one", reason: "it ended without a close" },
    { kind: "session_began", sidecar: "the new one" },
  ]);
  await close(bed, next);
});

test("takeover: a silent sidecar loses the worker, and gets the reason when it returns", async () => {
  const bed = await bedWith({ limits: { ...QUICK, quietMsMax: 60 } });
  bed.proxy.stall();
  const next = await openOn(bed, NEW);
  bed.proxy.heal();
  await until(() => failures(bed).length > 0, "the old one has failed");
  expect(failures(bed)).toEqual([expect.stringContaining("taken_over: by the new one")]);
  await close(bed, next);
});

test("takeover: the same sidecar takes its own worker back while its last connection still stands", async () => {
  const bed = await bedWith();
  const next = await openOn(bed, OLD);
  expect(bed.simulated.kvTokensUsed).toBe(0);
  await close(bed, next);
});

test("takeover: a live sidecar keeps the worker, and the other gets its name", async () => {
  const bed = await bedWith();
  const limits = { openMsMax: 200 };
  await refused("busy: in use by the old one", bed.host.url, { sidecar: NEW, limits });
  expect(failures(bed)).toEqual([]);
  await bed.old.close();
  await close(bed, await openOn(bed, NEW));
});
