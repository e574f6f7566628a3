import { expect, test } from "bun:test";
import { ProcessTimes, Watchdog } from "./watchdog.ts";

const HANG_MS = 20_000;
const RUNNING = [{ index: 7, sinceMs: 1 }];
const NEVER = { wallMs: 0, cpuMs: 0, queuedMs: 0 };

/** What is found after the times have passed, from the moment at which input 7 began. */
function foundAfter(times: { wallMs: number; cpuMs: number; queuedMs: number }): number[] {
  const watchdog = new Watchdog(HANG_MS);
  watchdog.look(RUNNING, NEVER);
  return watchdog.look(RUNNING, times);
}

test("watchdog: a process that gets no core has not hung", () => {
  expect(foundAfter({ wallMs: 600_000, cpuMs: 900, queuedMs: 590_000 })).toEqual([]);
});

test("watchdog: a loop without end has, whatever else runs", () => {
  expect(foundAfter({ wallMs: 600_000, cpuMs: 20_001, queuedMs: 1_000_000 })).toEqual([7]);
});

test("watchdog: a wait without end has", () => {
  expect(foundAfter({ wallMs: 20_100, cpuMs: 3, queuedMs: 40 })).toEqual([7]);
  expect(foundAfter({ wallMs: 19_900, cpuMs: 3, queuedMs: 40 })).toEqual([]);
});

test("watchdog: the next input with the same index begins anew", () => {
  const watchdog = new Watchdog(HANG_MS);
  watchdog.look(RUNNING, NEVER);
  const later = { wallMs: 30_000, cpuMs: 0, queuedMs: 0 };
  expect(watchdog.look([{ index: 7, sinceMs: 2 }], later)).toEqual([]);
});

test("watchdog: reads the times of a process", () => {
  const times = new ProcessTimes(process.pid);
  const before = times.read();
  let sum = 0;
  while (performance.now() - before.wallMs < 30) sum += Math.sqrt(sum + 1);
  const after = times.read();
  expect(sum).toBeGreaterThan(0);
  expect(after.wallMs - before.wallMs).toBeGreaterThanOrEqual(30);
  if (process.platform !== "linux") return;
  expect(after.cpuMs + after.queuedMs).toBeGreaterThan(before.cpuMs + before.queuedMs);
});
