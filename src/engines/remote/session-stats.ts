// What a worker counts, since a session began: to its sidecar it is a worker that has just started.

import type { WorkerStats } from "../../core/rollout/worker.ts";

/** The numbers that are no counts. */
const GAUGES: ReadonlySet<string> = new Set<keyof WorkerStats>([
  "running",
  "waiting",
  "kvTokensUsed",
  "stepError",
]);

/** `before`: what the worker said last before the session; null: nothing. */
export function statsSince(before: WorkerStats | null, now: WorkerStats): WorkerStats {
  if (before === null) return now;
  const earlier = new Map<string, unknown>(Object.entries(before));
  const since = Object.entries(now).map(([name, value]: [string, unknown]) => {
    const isCount = typeof value === "number" && !GAUGES.has(name);
    return [name, isCount ? value - Number(earlier.get(name) ?? 0) : value];
  });
  return Object.fromEntries(since);
}
