// Timers that many clients share: an error ends none of them, and a server that has stopped has none.

import { expect, test } from "bun:test";
import { SidecarBed } from "../../test/faults/fuzz/sidecar-bed.ts";
import { timersOf } from "./timers.ts";

test("timers: an error of one call is reported, and the next call still runs", async () => {
  const failures: unknown[] = [];
  const { afterwards, repeatedly, stop } = timersOf((error) => failures.push(error));
  const { promise, resolve } = Promise.withResolvers<void>();
  let calls = 0;
  repeatedly(() => {
    calls += 1;
    if (calls === 3) resolve();
    throw new Error("no");
  }, 1);
  await promise;
  stop();
  const { length: count } = failures;
  expect(count).toBeGreaterThanOrEqual(3);
  afterwards(() => failures.push("late"), 0);
  await new Promise<void>((done) => setTimeout(done, 5));
  expect(failures.length).toBe(count);
});

test("stop: a server that was paused, in an update, and followed has no timers left", async () => {
  const given = globalThis.setTimeout;
  const left = new Map<unknown, number>();
  const own = (timer: unknown, ms = 0) => {
    left.set(timer, ms);
    return timer;
  };
  const ended = (timer: unknown) => left.delete(timer);
  const { setInterval, clearTimeout, clearInterval } = globalThis;
  globalThis.setTimeout = ((act: () => void, ms?: number) => {
    const timer: unknown = given(() => {
      ended(timer);
      act();
    }, ms);
    return own(timer, ms);
  }) as typeof given;
  globalThis.setInterval = ((act: () => void, ms?: number) =>
    own(setInterval(act, ms), ms)) as typeof setInterval;
  globalThis.clearTimeout = ((timer: number) => {
    ended(timer);
    clearTimeout(timer);
  }) as typeof clearTimeout;
  globalThis.clearInterval = globalThis.clearTimeout;
  try {
    const bed = await SidecarBed.open();
    (await bed.connect("/v1/stream")).send(JSON.stringify({ subscribe: { all: true } }));
    await bed.connect("/v1/draft");
    for (const path of ["/pause?mode=keep", "/start_weight_update", "/update_weights"]) {
      expect((await bed.request(path, { method: "POST", body: "{}" })).status).toBe(200);
    }
    await bed.close();
  } finally {
    Object.assign(globalThis, { setTimeout: given, setInterval, clearTimeout, clearInterval });
  }
  expect([...left.values()]).toEqual([]);
});
