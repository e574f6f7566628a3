// What a refusal means, and how long to wait before the next attempt. Pure arithmetic.

import { fold32 } from "../../core/base/hash.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { VllmLimits } from "./limits.ts";

/** request: it can never run here. worker: nothing can. passing: another attempt may succeed. */
export type RefusalKind = "request" | "worker" | "passing";

/** By the status of an answer, or of an error inside a stream; 0: none. */
export function classify(status: number): RefusalKind {
  switch (status) {
    // The key is not accepted; the route or the model is gone.
    case 401:
    case 403:
    case 404:
    case 405:
      return "worker";
    // The client closed too early; the server requests a pause. 499 is a proxy's status for the first.
    case 408:
    case 425:
    case 429:
    case 499:
      return "passing";
    default:
      return status >= 400 && status < 500 ? "request" : "passing";
  }
}

/**
 * Doubles with each attempt that brought nothing. Spread by half, by the request's number, so that the requests of a
 * server that comes back do not come back together, and a run can be repeated.
 */
export function retryDelayMs(
  run: ChunkRun,
  limits: VllmLimits,
  retryAfterMs: number | null,
): number {
  const steps = Math.max(0, run.failedAttempts - 1);
  const whole = Math.min(limits.retryMsMax, limits.retryMs * 2 ** Math.min(steps, 30));
  const spread = fold32(run.spec.requestId, run.attempt) / 2 ** 32;
  const asked = Math.min(limits.retryMsMax, retryAfterMs ?? 0);
  return Math.max(asked, whole * (0.5 + spread / 2));
}

/**
 * Tokens of an event for each stream that is open: few while somebody may watch, many soon, for an event costs the
 * server's API process and the sidecar far more than its tokens do, and a rollout waits for none. What a server that
 * fails had not sent yet is generated again.
 */
const TOKENS_PER_STREAM = 4;

export function streamInterval(openStreams: number, max: number): number {
  return Math.min(max, TOKENS_PER_STREAM * Math.max(1, openStreams));
}
