// The progress clock of each engine: how long ago it last did something for its requests, beside how long that may take by
// its measured step time. An engine that is silent for longer is stuck, whatever its health check says; one that prefills
// a long prompt, or has not made its first token, is not. It decides nothing: it is for people.

import type { WorkerId } from "../base/ids.ts";
import { contextTokens, type RolloutRequest } from "../request/buffer.ts";
import type { Paces } from "../schedule/pace.ts";
import type { WorkerStats } from "./worker.ts";

export type WaitState = "ok" | "slow" | "stuck";

export interface EngineClock {
  readonly worker: WorkerId;
  /** starting: it has made no token yet, and loads, compiles or warms up. */
  readonly doing: "idle" | "starting" | "prefill" | "decode";
  readonly running: number;
  /** Time since its last progress while it has had something to do, ms; and whether that is longer than it may take. */
  readonly silentMs: number;
  readonly isSilent: boolean;
  /** Time of one step with what it runs; null: not measured. */
  readonly stepMs: number | null;
  /** Step time over that of the median engine. */
  readonly pace: number;
  readonly state: WaitState;
}

/** Silence that the network and the event loop may cause, ms. */
const NOISE_MS = 1_000;
/** Steps that one message of an engine may hold, and some. */
const MESSAGE_STEPS = 40;
/** The part of a decoding step that a token of prefill takes, at most, twice. */
const PREFILL_STEPS = 1 / 32;
/** Silence of an engine without a measured step that is called slow, ms. */
const STARTING_MS = 60_000;

interface Seen {
  readonly worker: WorkerId;
  readonly running: ReadonlySet<RolloutRequest>;
  readonly stats: WorkerStats | null;
  /** Time of its last token or step; 0: none yet. */
  readonly progressMs: number;
}

export function engineClock(
  { worker, running, stats, progressMs }: Seen,
  paces: Paces,
  nowMs: number,
): EngineClock {
  let oldestMs = nowMs;
  let prefill = 0;
  let hasDecoded = false;
  for (const request of running) {
    const chunk = request.response.chunks.at(-1);
    oldestMs = Math.min(oldestMs, chunk?.run?.startMs ?? nowMs);
    if ((chunk?.tokens ?? 0) > 0) hasDecoded = true;
    else prefill += contextTokens(request);
  }
  const silentMs = Math.max(0, nowMs - Math.max(progressMs, oldestMs));
  const meanStepMs = stats === null || stats.steps === 0 ? null : stats.busyMs / stats.steps;
  const stepMs = paces.stepMs(worker, running.size) ?? meanStepMs;
  const silentMsMax =
    stepMs === null ? STARTING_MS : NOISE_MS + stepMs * (MESSAGE_STEPS + prefill * PREFILL_STEPS);
  const isSilent = running.size > 0 && silentMs > silentMsMax;
  const pace = paces.of(worker);
  const busy = stepMs === null ? "starting" : hasDecoded ? "decode" : "prefill";
  const slow = running.size > 0 && pace > 1 ? "slow" : "ok";
  const state = isSilent ? (stepMs === null ? "slow" : "stuck") : slow;
  const doing = running.size === 0 ? "idle" : busy;
  return { worker, doing, running: running.size, silentMs, isSilent, stepMs, pace, state };
}
