// The runs of one round as the picture of `foretoken rollout --report` takes them: the round whose ratio of wall times is the
// median.

import type { ChunkRow } from "../../../src/core/rollout/timeline.ts";
import type { MeasuredRun } from "../../../src/observe/picture/figure.ts";
import type { Run } from "./drive.ts";
import { computedAgain, timelineOf } from "./figures.ts";
import { sumOf } from "./statistics.ts";

/** KV is logged as a share. */
const KV_WHOLE = 1000;

export function measuredRun(name: string, run: Run): MeasuredRun {
  const { interval_s, servers } = timelineOf(run);
  const { wallS, tailS, counters } = run;
  return {
    name,
    wall_s: wallS,
    tail_s: tailS,
    preemptions: counters.preemptions,
    timeline: {
      responses: responsesOf(run),
      workers: servers.map(({ running, kv_share }, worker) => {
        const at_ms = running.map((_, i) => i * interval_s * 1000);
        return {
          worker,
          name: `server ${worker}`,
          slots: 0,
          kv_tokens: KV_WHOLE,
          at_ms,
          running,
          waiting: [],
          kv_tokens_used: kv_share.map((share) => share * KV_WHOLE),
          recomputing_ms: recomputingMs(run, worker, at_ms),
          output_tokens: at_ms.map((ms) => madeBefore(run, worker, ms)),
        };
      }),
    },
  };
}

function madeBefore({ log, startS }: Run, server: number, ms: number): number {
  const steps = (log.steps[server] ?? []).filter(({ endS }) => (endS - startS) * 1000 <= ms);
  return sumOf(steps, ({ tokensMade }) => tokensMade);
}

/** Time of the rows that were computed again, up to each of the times: they take their part of the step that follows. */
function recomputingMs({ log, startS }: Run, server: number, atMs: readonly number[]): number[] {
  const prefills = log.prefills.filter((prefill) => prefill.server === server);
  let beforeS = Number.NEGATIVE_INFINITY;
  const steps = (log.steps[server] ?? []).map(({ beginS, endS, rows }) => {
    const own = prefills.filter(({ atS }) => atS > beforeS && atS <= endS);
    beforeS = endS;
    const share = Math.min(1, computedAgain({ ...log, prefills: own }) / rows);
    return { beginMs: (beginS - startS) * 1000, ms: (endS - beginS) * 1000, share };
  });
  const doneBy = (at: number) => (of: { beginMs: number; ms: number; share: number }) =>
    of.share * Math.max(0, Math.min(of.ms, at - of.beginMs));
  return atMs.map((at) => sumOf(steps, doneBy(at)));
}

/** A chunk begins with its prefill and ends where the server lets go of it. */
function responsesOf({ log, startS }: Run): MeasuredRun["timeline"]["responses"] {
  const keyOf = ({ group, sample }: { group: number; sample: number }) => `${group}/${sample}`;
  const ends = Map.groupBy(log.ends, keyOf);
  const prefills = Map.groupBy(
    log.prefills.filter(({ isResumed }) => !isResumed),
    keyOf,
  );
  const ms = (atS: number): number => (atS - startS) * 1000;
  return [...ends].map(([key, of], request) => {
    const begins = prefills.get(key) ?? [];
    const last = of.at(-1);
    return {
      group: String(last?.group),
      index: last?.sample ?? 0,
      request,
      prompt_tokens: 0,
      tokens_max: last?.madeTokens ?? 0,
      joined_ms: 0,
      end_ms: ms(last?.atS ?? startS),
      finish_reason: null,
      tokens: last?.madeTokens ?? 0,
      chunks: of.map((end, i): ChunkRow => {
        const begin = begins[i];
        const tokens = end.madeTokens - (begin?.madeTokens ?? 0);
        const unknown = [null, null, null, null, null] as const;
        return [end.server, ms(begin?.atS ?? startS), ms(end.atS), null, tokens, ...unknown];
      }),
    };
  });
}

/** The round whose ratio of wall times is the median. */
export function middleRound(base: readonly Run[], of: readonly Run[]): number {
  const ratios = of.map(({ wallS }, i) => ({ i, ratio: (base[i]?.wallS ?? 0) / wallS }));
  const sorted = ratios.toSorted((a, b) => a.ratio - b.ratio);
  return sorted[Math.floor((sorted.length - 1) / 2)]?.i ?? 0;
}
