// What a worker counts, since a session began: to its sidecar it is a worker that has just started.

import type { WorkerStats } from "../../rollout/worker.ts";

const COUNTED = [
  "steps",
  "busyMs",
  "draftMs",
  "outputTokens",
  "prefillTokens",
  "recomputedTokens",
  "preemptions",
  "draftedTokens",
  "acceptedTokens",
  "drafts",
  "kvLoads",
  "kvLoadFailures",
] as const satisfies readonly (keyof WorkerStats)[];

/** `before`: what the worker said last before the session; null: nothing. */
export function statsSince(before: WorkerStats | null, now: WorkerStats): WorkerStats {
  if (before === null) return now;
  const since = Object.fromEntries(COUNTED.map((name) => [name, now[name] - before[name]]));
  if (now.draftSavedMs !== undefined) {
    since.draftSavedMs = now.draftSavedMs - (before.draftSavedMs ?? 0);
  }
  return { ...now, ...since };
}
