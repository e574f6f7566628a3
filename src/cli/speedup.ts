// One sentence on why an iteration was faster than another: what drafts gave, and what balance and kept KV gave.

/** The figures of a report that the sentence needs. Seconds; `busy_s` and `draft_saved_s` are sums over all engines. */
export interface SpeedupRun {
  readonly busy_s: number;
  readonly draft_saved_s: number;
}

/**
 * `speedup`: time of `base` over that of `run`, wall time or engine time. Without drafts, `run`'s engines would have been busy for
 * `draft_saved_s` longer (by their models of step time), so that drafts made it (busy + saved) / busy times as fast.
 * The rest is that engines idle less and recompute less KV.
 */
export function speedupSentence(
  [baseName, base]: readonly [string, SpeedupRun],
  [name, run]: readonly [string, SpeedupRun],
  { speedup, isEngineTime = false }: { speedup: number; isEngineTime?: boolean },
): string {
  const factor = ({ busy_s, draft_saved_s }: SpeedupRun): number =>
    busy_s === 0 ? 1 : Math.max(1, (busy_s + draft_saved_s) / busy_s);
  const drafts = factor(run) / factor(base);
  const parts = [`${(speedup / drafts).toFixed(2)} from balance and KV kept`];
  if (run.draft_saved_s !== 0 || base.draft_saved_s !== 0) {
    parts.push(`${drafts.toFixed(2)} from drafts`);
  }
  const by = isEngineTime ? "By engine time " : "";
  return `${by}${name} finished ${speedup.toFixed(2)} times as fast as ${baseName}: ${parts.join(", ")}`;
}
