// The request for one attempt at a chunk (length, priority, name, salt), the kinds of refusals, and the pause before the
// next attempt. It does no I/O.

import { createHash } from "node:crypto";
import { fold32 } from "../../core/base/hash.ts";
import type { WeightEpoch } from "../../core/base/ids.ts";
import { reportsPrompt } from "../../core/request/request.ts";
import type { Refusal } from "../../core/request/response.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { ChunkRequest } from "./dialect.ts";
import type { VllmLimits } from "./limits.ts";

/** Priority of urgent requests. Among equally urgent ones, the longest goes first and is preempted last. */
const URGENT_PRIORITY = -(2 ** 31);

/** Length of the hash of a client's cache_salt, in hexadecimal digits: 128 bits. */
const SALT_CHARACTERS = 32;

/** Suffix that separates KV within one weight epoch: the adapter, and the client's cache_salt. */
function ownSalt({ spec }: ChunkRun): string {
  const { adapter = null, cacheSalt = null } = spec.sampling;
  const hash = cacheSalt === null ? "" : createHash("sha256").update(cacheSalt).digest("hex");
  const salt = hash.slice(0, SALT_CHARACTERS);
  return `${adapter === null ? "" : `-a-${adapter}`}${salt === "" ? "" : `-s-${salt}`}`;
}

/** The request for an attempt, which continues after the response's `output`; null: prompt and output so far fill the server's context. */
export function chunkRequest(
  run: ChunkRun,
  output: Int32Array,
  server: {
    contextTokens: number;
    cacheSalt: string;
    epoch: WeightEpoch;
    openStreams: number;
    streamIntervalMax: number;
  },
): ChunkRequest | null {
  const tokens = run.context(output);
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

/** request: it can never run here. worker: no request can. full: the server is busy with others. passing: try again. */
export type RefusalKind = "request" | "worker" | "full" | "passing";

/** Messages of vLLM's 503 at --max-num-queued-reqs and --max-num-queued-tokens: other 503s have another text. */
const FULL = /cannot accept new requests|token backlog limit/;

/** The kind of a refusal, which was an answer or an error inside a stream. Status 0: not given. */
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
 * The pause doubles with each failed attempt. It varies by half with the request's number: so requests do not return to a
 * recovered server all at once, and a run can still be repeated.
 */
export function retryDelayMs(
  run: ChunkRun,
  limits: VllmLimits,
  retryAfterMs: number | null,
): number {
  const steps = Math.max(0, run.failedAttempts - 1);
  const whole = Math.min(limits.retryMsMax, limits.retryMs * 2 ** Math.min(steps, 30));
  const spread = fold32(run.spec.requestId, run.attempt) / 2 ** 32;
  const requested = Math.min(limits.retryMsMax, retryAfterMs ?? 0);
  return Math.max(requested, whole * (0.5 + spread / 2));
}

/**
 * Tokens per event, for each open stream. With few streams events are small, for people who watch; with many they are
 * large, because an event costs the server's API process and the sidecar far more than its tokens, and a rollout does
 * not wait for single events. Tokens that a failed server had not sent are generated again.
 */
const TOKENS_PER_STREAM = 4;

export function streamInterval(openStreams: number, max: number): number {
  return Math.min(max, TOKENS_PER_STREAM * Math.max(1, openStreams));
}
