import { expect, test } from "bun:test";
import { timesOf, Watchdog } from "./watchdog.ts";

const NEVER = { wallMs: 0, cpuMs: 0, queuedMs: 0 };

test.each([
  ["a process that gets no core has not hung", [600_000, 900, 590_000], []],
  ["a loop without end has", [600_000, 20_001, 579_000], [7]],
  ["a wait without end has", [20_100, 3, 40], [7]],
  ["what is not over the limit has not", [19_900, 3, 40], []],
] as const)("watchdog: %s", (_, [wallMs, cpuMs, queuedMs], found) => {
  const watchdog = new Watchdog(20_000);
  const running = [{ index: 7, sinceMs: 1 }];
  watchdog.look(running, NEVER);
  expect(watchdog.look(running, { wallMs, cpuMs, queuedMs })).toEqual([...found]);
  // The next input with the same index begins anew.
  watchdog.look(running, NEVER);
  const later = { wallMs: 30_000, cpuMs: 0, queuedMs: 0 };
  expect(watchdog.look([{ index: 7, sinceMs: 2 }], later)).toEqual([]);
});

test("watchdog: reads the times of a process", () => {
  const before = timesOf(process.pid);
  let sum = 0;
  while (performance.now() - before.wallMs < 30) sum += Math.sqrt(sum + 1);
  const after = timesOf(process.pid);
  expect(after.wallMs - before.wallMs).toBeGreaterThanOrEqual(30);
  if (process.platform !== "linux") return;
  expect(after.cpuMs + after.queuedMs).toBeGreaterThan(before.cpuMs + before.queuedMs);
});
