// How long an iteration still takes, by what the scheduler itself expects of each group (L_g) and by the speed that
// was measured last. At that speed the longest response takes so long at least; what waits has to be made beside it,
// so that the work of all that waits, over the speed of all that runs, is the most that comes on top
// (Graham's bounds of list scheduling). It promises nothing of responses that get longer than their group's others.

import type { Group, Request } from "../request/buffer.ts";

/** Seconds from now; `lowS` = `highS` where nothing waits. */
export interface TimeLeft {
  readonly lowS: number;
  readonly highS: number;
}

/** `running` responses gain `tokensPerS` together. */
export interface Speed {
  readonly running: number;
  readonly tokensPerS: number;
}

/**
 * `learned`: L_g of a group, null while nothing is known of it; it then counts as the mean of the others. null: nothing
 * is known of any group, or nothing runs.
 */
export function timeLeft(
  requests: Iterable<Request>,
  learned: (group: Group) => number | null,
  { running, tokensPerS }: Speed,
): TimeLeft | null {
  if (running === 0 || tokensPerS === 0) return null;
  const open = [...requests].filter(({ status }) => status !== "finished");
  const estimates = new Map<Group, number | null>();
  for (const { group } of open) {
    if (!estimates.has(group)) estimates.set(group, learned(group));
  }
  const known = [...estimates.values()].filter((tokens) => tokens !== null);
  if (known.length === 0) return null;
  const mean = known.reduce((sum, tokens) => sum + tokens, 0) / known.length;
  let [longest, waiting] = [0, 0];
  for (const { group, response, status } of open) {
    const estimate = Math.min(response.tokensMax, estimates.get(group) ?? mean);
    const left = Math.max(1, estimate - response.length);
    longest = Math.max(longest, left);
    if (status === "waiting") waiting += left;
  }
  const lowS = (longest * running) / tokensPerS;
  return { lowS, highS: lowS + waiting / tokensPerS };
}
