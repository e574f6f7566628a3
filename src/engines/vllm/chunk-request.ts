// The request for one attempt at a chunk (length, priority, name and salt), the meaning of a refusal, and the pause
// before the next attempt. Pure arithmetic.

import { createHash } from "node:crypto";
import { fold32 } from "../../core/base/hash.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import { reportsPrompt } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { ChunkRequest } from "./dialect.ts";
import type { VllmLimits } from "./limits.ts";

/** Among requests of one urgency, those that have come furthest go first and are preempted last. */
const URGENT_PRIORITY = -(2 ** 31);

/** Characters of a client's own salt that are used: 128 bits. */
const SALT_CHARACTERS = 32;

/** Suffix that separates KV within one weight epoch: the adapter, and the client's own salt. */
function ownSalt({ spec }: ChunkRun): string {
  const { adapter = null, cacheSalt = null } = spec.sampling;
  const hash = cacheSalt === null ? "" : createHash("sha256").update(cacheSalt).digest("hex");
  const salt = hash.slice(0, SALT_CHARACTERS);
  return `${adapter === null ? "" : `-a-${adapter}`}${salt === "" ? "" : `-s-${salt}`}`;
}

/** null: the text so far fills the server's context. */
export function chunkRequest(
  run: ChunkRun,
  server: {
    contextTokens: number;
    cacheSalt: string;
    epoch: WeightEpoch;
    openStreams: number;
    streamIntervalMax: number;
  },
): ChunkRequest | null {
  const tokens = run.context();
  const room = server.contextTokens - tokens.length;
  if (room < 1) return null;
  // `/v1/completions` answers 400 to more than there is room for.
  const form = run.offset === 0 && reportsPrompt(run.spec.sampling) ? "whole" : "stream";
  // One token brings the report on the prompt; what follows it comes as a stream.
  const isFirst = form === "whole" && run.spec.divisible;
  const tokensMax = isFirst ? 1 : Math.min(run.tokensLeft, room);
  return {
    name: `ft-${run.spec.requestId}-${run.chunk}-${run.attempt}`,
    spec: run.spec,
    offset: run.offset,
    tokens,
    tokensMax,
    isLast: tokensMax === room || run.offset + tokensMax >= run.spec.sampling.tokensMax,
    priority: (run.isUrgent ? URGENT_PRIORITY : 0) - run.offset,
    // KV of other weights is not found under this name.
    cacheSalt: `${server.cacheSalt}-w${server.epoch}${ownSalt(run)}`,
    run: server.cacheSalt,
    epoch: server.epoch,
    streamInterval: streamInterval(server.openStreams, server.streamIntervalMax),
    draft: run.draft,
    form,
    expertsFrom: run.expertsFrom,
  };
}

/** request: it can never run here. worker: nothing can. full: others run. passing: another attempt may succeed. */
export type RefusalKind = "request" | "worker" | "full" | "passing";

/** vLLM's 503 at --max-num-queued-reqs and --max-num-queued-tokens. A proxy's, or a failed load's, has another text. */
const FULL = /cannot accept new requests|token backlog limit/;

/** The kind of a refusal, by an answer or an error inside a stream; its status is 0 where there is none. */
export function classify({ status, message }: Refusal): RefusalKind {
  switch (status) {
    case 503:
      return FULL.test(message) ? "full" : "passing";
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
 * Tokens per event for each open stream. Few streams get small events, for people who watch; many get large ones,
 * because an event costs the server's API process and the sidecar far more than its tokens, and a rollout waits for
 * none. Tokens that a failed server had not sent are generated again.
 */
const TOKENS_PER_STREAM = 4;

export function streamInterval(openStreams: number, max: number): number {
  return Math.min(max, TOKENS_PER_STREAM * Math.max(1, openStreams));
}
