// Sentences on why an iteration was faster than another: what drafts gave, and what balance and kept KV gave.

import { busyNotes, median, type Round, type RoundsReport } from "./rounds.ts";
import type { Runs } from "./table.ts";

/** Whether all runs made the same responses, in every round. */
export function areEqual(reports: Runs): boolean {
  return Object.values(reports).every(({ requests, rounds }) =>
    rounds.every(({ equal_responses }) => equal_responses === requests),
  );
}

/**
 * A sentence for each run after the first, with medians of the rounds' ratios, as in the table: ratios of engine times if
 * other processes lengthen wall times and all engines are embedded. It also tells why a run has no drafts, and how many of
 * its responses are equal to the first run's.
 *
 * Without drafts, a run's engines would have been busy for `draft_saved_s` longer (by their models of step time), so that
 * drafts made it (busy + saved) / busy times as fast. The rest is that engines idle less and recompute less KV.
 */
export function speedups(reports: Runs, servers: readonly string[] = []): string[] {
  const [base, ...others] = Object.entries(reports);
  if (base === undefined || base[1].interrupted) return [];
  const [baseName, first] = base;
  const isEngineTime = servers.length === 0 && busyNotes(Object.values(reports)).length > 0;
  const ofServers = "these servers make none";
  const none = servers.length > 0 ? ofServers : "by the step times measured here they do not pay";
  const secondsOf = ({ wall_s, engine_s }: Round) => (isEngineTime ? engine_s : wall_s);
  return others.flatMap(([name, run]) => {
    if (run.interrupted) return [];
    const ratios = run.rounds.flatMap((round, i) => {
      const of = first.rounds[i];
      return of === undefined ? [] : [secondsOf(of) / secondsOf(round)];
    });
    const speedup = median(ratios);
    const drafts = draftFactor(run) / draftFactor(first);
    const parts = [`${(speedup / drafts).toFixed(2)} from balance and KV kept`];
    if (run.draft_saved_s !== 0 || first.draft_saved_s !== 0) {
      parts.push(`${drafts.toFixed(2)} from drafts`);
    }
    const by = isEngineTime ? "By engine time " : "";
    const sentence = `${by}${name} finished ${speedup.toFixed(2)} times as fast as ${baseName}: ${parts.join(", ")}`;
    const equal = Math.min(...run.rounds.map((round) => round.equal_responses ?? Number.NaN));
    const why = run.draft !== "off" && run.drafts === 0 ? `; no drafts were made: ${none}` : "";
    const same = equal >= 0 ? `; ${equal} of ${run.requests} responses are equal` : "";
    return [`${sentence}${why}${same}.`];
  });
}

function draftFactor({ busy_s, draft_saved_s }: RoundsReport): number {
  return busy_s === 0 ? 1 : Math.max(1, (busy_s + draft_saved_s) / busy_s);
}
