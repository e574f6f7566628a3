// Who gets a worker that another sidecar has: at once where that one is gone, cannot be heard, or is the same;
// never from one that is there and answers.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import {
  closeAll,
  eventsOf,
  listen,
  open,
  openOn,
  proxyBefore,
  QUICK,
  refused,
  settled,
  until,
} from "../../../test/suite/link-fixture.ts";
import { newSimulated, newSpec, runOf } from "../../../test/suite/simulated-runs.ts";
import type { LinkHostEvent, LinkHostOptions } from "./host.ts";

setDefaultTimeout(180_000);

afterEach(closeAll);

const OLD = { id: "old", name: "the old one" };
const NEW = { id: "new", name: "the new one" };

/** The old sidecar runs a request through the proxy. */
async function bedWith(options: Partial<LinkHostOptions> = {}) {
  const simulated = newSimulated();
  const told: LinkHostEvent[] = [];
  const host = await listen(simulated, { events: (event) => told.push(event), ...options });
  const proxy = await proxyBefore(host.url);
  const old = await open(proxy.url, { sidecar: OLD });
  const events = eventsOf(old);
  old.send([runOf(newSpec(1))]);
  await settled(old);
  const failures = () =>
    events.flatMap((event) => (event.kind === "failed" ? [event.message] : []));
  return { simulated, url: host.url, proxy, old, failures, told };
}

test("takeover: a session whose connection is gone ends for the next sidecar, and its requests with it", async () => {
  const bed = await bedWith();
  // It can neither go on nor come back: its process was killed.
  await bed.proxy.close();
  await openOn(bed.simulated, bed.url, { sidecar: NEW });
  expect(bed.simulated.kvTokensUsed).toBe(0);
  expect(bed.told).toMatchObject([
    { kind: "session_began", sidecar: "the old one" },
    { kind: "session_ended", sidecar: "the old one", reason: "it ended without a close" },
    { kind: "session_began", sidecar: "the new one" },
  ]);
});

test("takeover: a silent sidecar loses the worker, and gets the reason when it returns", async () => {
  const bed = await bedWith({ limits: { ...QUICK, quietMsMax: 60 } });
  bed.proxy.stall();
  await openOn(bed.simulated, bed.url, { sidecar: NEW });
  bed.proxy.heal();
  await until(() => bed.failures().length > 0, "the old one has failed");
  expect(bed.failures()).toEqual([expect.stringContaining("taken_over: by the new one")]);
});

test("takeover: the same sidecar takes its own worker back while its last connection still stands", async () => {
  const bed = await bedWith();
  await openOn(bed.simulated, bed.url, { sidecar: OLD });
  expect(bed.simulated.kvTokensUsed).toBe(0);
});

test("takeover: a live sidecar keeps the worker, and the other gets its name", async () => {
  const bed = await bedWith();
  const limits = { openMsMax: 200 };
  await refused("busy: in use by the old one", bed.url, { sidecar: NEW, limits });
  expect(bed.failures()).toEqual([]);
  await bed.old.close();
  await openOn(bed.simulated, bed.url, { sidecar: NEW });
});
