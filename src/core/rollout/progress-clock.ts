// The progress clock of each engine: how long ago it last did something for its requests, and how long that may take by its
// measured step time. An engine that is silent for longer is stuck, whatever its health check says; one that prefills a
// long prompt, or has not made its first token, is not. It decides nothing: it is for people.

import type { WorkerId } from "../base/ids.ts";
import { contextTokens, type Request } from "../request/buffer.ts";
import type { Paces } from "../schedule/pace.ts";
import type { WorkerStats } from "./worker.ts";

export type Verdict = "ok" | "slow" | "stuck";

/** starting: it has made no token yet, and loads, compiles or warms up. */
export type Doing = "idle" | "starting" | "prefill" | "decode";

export interface EngineClock {
  readonly worker: WorkerId;
  readonly doing: Doing;
  readonly running: number;
  /** Time since its last progress while it has had something to do, ms. */
  readonly silentMs: number;
  /** Time for which it may be silent; null: no step of it was measured. */
  readonly silentMsMax: number | null;
  /** Time of one step with what it runs; null: not measured. */
  readonly stepMs: number | null;
  /** Step time over that of the median engine. */
  readonly pace: number;
  readonly verdict: Verdict;
}

/** Silence that the network and the event loop may cause, ms. */
const NOISE_MS = 1_000;
/** Steps that one message of an engine may hold, and some. */
const MESSAGE_STEPS = 40;
/** A prompt token takes at most this part of a step that decodes. */
const PROMPT_TOKEN_STEPS = 1 / 64;
const PREFILL_FACTOR = 2;
/** Silence of an engine without a measured step that is called slow, ms. */
const STARTING_MS = 60_000;

interface Seen {
  readonly worker: WorkerId;
  readonly running: ReadonlySet<Request>;
  readonly stats: WorkerStats | null;
  /** Time of its last token or step; 0: none yet. */
  readonly progressMs: number;
}

export function engineClock(
  { worker, running, stats, progressMs }: Seen,
  paces: Paces,
  nowMs: number,
): EngineClock {
  const begun = [...running].map(({ response }) => response.chunks.at(-1)?.run?.startMs ?? nowMs);
  const oldestMs = Math.min(...begun, nowMs);
  const silentMs = Math.max(0, nowMs - Math.max(progressMs, oldestMs));
  const pace = paces.of(worker);
  const stepMs = paces.stepMs(worker, running.size) ?? meanStepMs(stats);
  const prefill = prefillTokens(running);
  const silentMsMax =
    stepMs === null
      ? null
      : NOISE_MS + stepMs * (MESSAGE_STEPS + PREFILL_FACTOR * prefill * PROMPT_TOKEN_STEPS);
  const isOver = silentMs > (silentMsMax ?? STARTING_MS);
  const late: Verdict = silentMsMax === null ? "slow" : "stuck";
  const isIdle = running.size === 0;
  const hasDecoded = [...running].some(({ response }) => (response.chunks.at(-1)?.tokens ?? 0) > 0);
  const busy: Doing = stepMs === null ? "starting" : hasDecoded ? "decode" : "prefill";
  const verdict = isIdle ? "ok" : isOver ? late : pace > 1 ? "slow" : "ok";
  const doing = isIdle ? "idle" : busy;
  return { worker, doing, running: running.size, silentMs, silentMsMax, stepMs, pace, verdict };
}

function meanStepMs(stats: WorkerStats | null): number | null {
  return stats === null || stats.steps === 0 ? null : stats.busyMs / stats.steps;
}

/** Tokens whose KV running requests may still lack: siblings share their prompt's. */
function prefillTokens(running: ReadonlySet<Request>): number {
  const prompts = new Set<Request["group"]>();
  let tokens = 0;
  for (const request of running) {
    const { group, response, spec } = request;
    const [before, chunk] = response.chunks.slice(-2);
    const current = chunk ?? before;
    if (current === undefined || current.tokens > 0) continue;
    if (chunk === undefined && !prompts.has(group)) tokens += spec.prompt.length;
    else if (chunk !== undefined && before?.workerId !== chunk.workerId)
      tokens += contextTokens(request);
    prompts.add(group);
  }
  return tokens;
}
