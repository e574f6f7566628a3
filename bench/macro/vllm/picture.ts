// The pictures of a run: the page of `foretoken rollout --report`, and its charts as one SVG for a document, of the round
// whose ratio of wall times is the median.

import type { ChunkRow } from "../../../src/core/rollout/timeline.ts";
import type { MeasuredRun } from "../../../src/tools/picture/page.ts";
import type { Run } from "./drive.ts";
import { timelineOf } from "./figures.ts";

const STEP_COLUMNS = 120;
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
    tokens_per_step_over_time: counters.acceptedTokens === 0 ? null : tokensPerStep(run),
    timeline: {
      responses: responsesOf(run),
      workers: servers.map(({ running, kv_share }, worker) => ({
        worker,
        name: `server ${worker}`,
        slots: 0,
        kv_tokens: KV_WHOLE,
        at_ms: running.map((_, i) => i * interval_s * 1000),
        running,
        waiting: [],
        kv_tokens_used: kv_share.map((share) => share * KV_WHOLE),
      })),
    },
  };
}

/** Tokens of a request in a step, by even parts of the wall time. */
function tokensPerStep({ log, startS, wallS }: Run): number[] {
  const made = new Float64Array(STEP_COLUMNS);
  const requests = new Float64Array(STEP_COLUMNS);
  for (const step of log.steps.flat()) {
    const at = Math.floor(((step.beginS - startS) / wallS) * STEP_COLUMNS);
    const column = Math.max(0, Math.min(STEP_COLUMNS - 1, at));
    made[column] = (made[column] ?? 0) + step.tokensMade;
    requests[column] = (requests[column] ?? 0) + step.requests;
  }
  return Array.from(made, (tokens, i) => Math.max(1, tokens / Math.max(1, requests[i] ?? 0)));
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
