// What a run says, as figures: from the requests' times, the servers' counters and the engines' logs.

import type { Run } from "./drive.ts";
import type { EngineLog } from "./engine-log.ts";
import { meanOf, sumOf } from "./statistics.ts";

export interface RoundFigures {
  readonly wall_s: number;
  readonly tail_s: number;
  readonly output_tokens: number;
  /** Output tokens of a request in a step: 1 without drafts. */
  readonly tokens_per_step: number;
  readonly engine_steps: number;
  /** Prompts of all requests that reached the engines: a chunk that goes on brings its text so far. */
  readonly prompt_tokens: number;
  /** The part of prompt_tokens that was found neither in a prefix cache nor in the pool. */
  readonly prompt_tokens_computed: number;
  /** Tokens that had been computed before: of chunks that went on, and after preemptions. */
  readonly computed_again_tokens: number;
  readonly preemptions: number;
  /** Chunks that went on at the other server; output tokens in them, and those whose KV was found there. */
  readonly moves: number;
  readonly moved_tokens: number;
  readonly moved_tokens_found: number;
  /** Found in the KV pool, prompts included. */
  readonly pool_hit_tokens: number;
  readonly drafted_tokens: number;
  readonly accepted_tokens: number;
  /** CPU of the step's own thread in proposing. */
  readonly propose_us: number;
  /** Requests running on both servers, over the whole run. */
  readonly running_mean: number;
  /** Share of the KV in use, and seconds, while a request was waiting for an engine. */
  readonly kv_share_waiting: number;
  readonly waiting_s: number;
  readonly servers_cpu_s: number;
  readonly sidecar_cpu_s: number;
  readonly others_cpu_share: number;
  readonly idle_sets_cpu_share: number;
  readonly timeline: Timeline;
}

/** Running requests and KV in use of each server, at even distances. */
export interface Timeline {
  readonly interval_s: number;
  readonly servers: readonly { readonly running: number[]; readonly kv_share: number[] }[];
}

const INTERVAL_S = 0.25;

export function figuresOf(run: Run): RoundFigures {
  const { log, counters, wallS } = run;
  const outputTokens = sumOf(run.texts.flat(), (text) => text.length);
  const timeline = timelineOf(run);
  const begun = log.prefills.filter(({ isResumed }) => !isResumed);
  const running = Array.from({ length: Math.ceil(wallS / INTERVAL_S) }, (_, i) =>
    sumOf(timeline.servers, (server) => server.running[i] ?? 0),
  );
  return {
    wall_s: wallS,
    tail_s: run.tailS,
    output_tokens: outputTokens,
    tokens_per_step:
      counters.generationTokens / Math.max(1, counters.generationTokens - counters.acceptedTokens),
    engine_steps: counters.steps,
    prompt_tokens: sumOf(begun, ({ promptTokens, madeTokens }) => promptTokens + madeTokens),
    prompt_tokens_computed: sumOf(begun, ({ computedTokens }) => computedTokens),
    computed_again_tokens: computedAgain(log),
    preemptions: counters.preemptions,
    ...movesOf(log),
    pool_hit_tokens: counters.externalHitTokens,
    drafted_tokens: counters.draftedTokens,
    accepted_tokens: counters.acceptedTokens,
    propose_us: log.proposeUs,
    running_mean: running.length === 0 ? 0 : meanOf(running),
    ...waitingOf(run, timeline, running),
    servers_cpu_s: run.serversCpuS,
    sidecar_cpu_s: run.sidecarCpuS,
    others_cpu_share: run.othersCpuShare,
    idle_sets_cpu_share: run.idleCpuShare,
    timeline,
  };
}

/**
 * Tokens whose KV was there before and was not found. The last token of a text has no KV yet: that it is computed is no
 * loss. Rows of drafts are none either: vLLM pads a request that lacks one token only with as many as it may draft.
 */
export function computedAgain({ prefills }: EngineLog): number {
  return sumOf(prefills, ({ promptTokens, madeTokens, isResumed, foundTokens }) => {
    if (madeTokens > 0) return promptTokens + madeTokens - 1 - foundTokens;
    return isResumed ? promptTokens - foundTokens : 0;
  });
}

export function movesOf({
  prefills,
}: EngineLog): Pick<RoundFigures, "moves" | "moved_tokens" | "moved_tokens_found"> {
  const serverOf = new Map<string, number>();
  let moves = 0;
  let moved = 0;
  let found = 0;
  for (const { server, group, sample, promptTokens, madeTokens, foundTokens } of prefills) {
    const response = `${group}/${sample}`;
    const before = serverOf.get(response) ?? server;
    serverOf.set(response, server);
    if (before === server) continue;
    moves += 1;
    moved += madeTokens;
    found += Math.max(0, Math.min(madeTokens, foundTokens - promptTokens));
  }
  return { moves, moved_tokens: moved, moved_tokens_found: found };
}

export function timelineOf({ log, startS, wallS }: Run): Timeline {
  const count = Math.ceil(wallS / INTERVAL_S);
  const servers = log.steps.map((steps) => {
    const running: number[] = [];
    const kv: number[] = [];
    let at = -1;
    for (let i = 0; i < count; i += 1) {
      const nowS = startS + (i + 0.5) * INTERVAL_S;
      while (at + 1 < steps.length && (steps[at + 1]?.beginS ?? 0) <= nowS) at += 1;
      const step = steps[at];
      const isIdle = step === undefined || (step.endS < nowS && step.unfinished === 0);
      running.push(isIdle ? 0 : step.requests);
      kv.push(isIdle ? 0 : Math.round(step.kvShare * 1000) / 1000);
    }
    return { running, kv_share: kv };
  });
  return { interval_s: INTERVAL_S, servers };
}

/** A request waits, wherever it does, while fewer run than have not finished. */
/**
 * While at least one response waits for all of an interval; a response between two chunks is away for some
 * milliseconds only.
 */
function waitingOf(
  { finishedS }: Run,
  { servers }: Timeline,
  running: readonly number[],
): Pick<RoundFigures, "kv_share_waiting" | "waiting_s"> {
  const shares: number[] = [];
  for (const [i, runs] of running.entries()) {
    const nowS = (i + 0.5) * INTERVAL_S;
    const unfinished = finishedS.filter((s) => s > nowS).length;
    if (unfinished - runs >= 1)
      shares.push(meanOf(servers.map(({ kv_share }) => kv_share[i] ?? 0)));
  }
  return {
    kv_share_waiting: shares.length === 0 ? 0 : meanOf(shares),
    waiting_s: shares.length * INTERVAL_S,
  };
}

/** Figures of all rounds: times, shares and ratios are means, counts are sums. */
export type SystemFigures = Omit<RoundFigures, "timeline"> & {
  readonly rounds: readonly RoundFigures[];
};

const MEANS = new Set([
  "wall_s",
  "tail_s",
  "tokens_per_step",
  "running_mean",
  "kv_share_waiting",
  "waiting_s",
  "servers_cpu_s",
  "sidecar_cpu_s",
  "others_cpu_share",
  "idle_sets_cpu_share",
]);

export function figuresOfAll(rounds: readonly RoundFigures[]): SystemFigures {
  const [first] = rounds;
  if (first === undefined) throw new RangeError("there is at least one round");
  const { timeline: _, ...figures } = first;
  const keys = Object.keys(figures) as (keyof typeof figures)[];
  const entries = keys.map((key) => {
    const sum = sumOf(rounds, (round) => round[key]);
    return [key, MEANS.has(key) ? sum / rounds.length : sum];
  });
  return { ...(Object.fromEntries(entries) as typeof figures), rounds };
}
