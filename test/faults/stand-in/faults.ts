// Which fault the stand-in shows to which request: by a seed, so that a run can be repeated, or by a script.

import { fold32 } from "../../../src/core/base/hash.ts";

export const FAULT_KINDS = [
  /** HTTP 503, and 500, before anything else. */
  "unavailable",
  /** HTTP 503 as vLLM's --max-num-queued-reqs answers. */
  "full",
  "broken",
  /** No answer at all, until the client goes. */
  "hang",
  /** The connection breaks between two events, and within a line. */
  "cut",
  "cut_line",
  /** The stream says nothing any more, until the client goes. */
  "mute",
  /** The stream pauses for a while, as for a preempted request, and goes on. */
  "silence",
  /** Two events change places. */
  "disorder",
  /** An event comes twice. */
  "repeat",
  /** HTTP 200 with an error inside, and the end without [DONE]. */
  "error_inside",
  /** [DONE] without a finish reason. */
  "no_reason",
  /** The request is aborted from elsewhere. */
  "abort",
  /** An event that is not JSON. */
  "garbage",
  /** The body ends, complete, without [DONE]. */
  "ended",
  /** The whole server goes down and comes back empty. */
  "restart",
] as const;

/** Output of no correct server: for attacks, and not among the faults that a request survives. */
export const LIE_KINDS = [
  /** Tokens beyond its vocabulary, below zero, of no integer. */
  "wild_token",
  "huge_token",
  "negative_token",
  "fractional_token",
  "text_token",
  /** Logprobs that are none: not there, not a number (which is not JSON either), beyond all numbers. */
  "no_logprobs",
  "nan_logprob",
  "infinite_logprob",
  /** The server's count of tokens says that some are missing. */
  "wrong_count",
  /** JSON of the wrong shape, and deep beyond measure. */
  "wrong_shape",
  "deep_json",
  /** Bytes that are no event. */
  "random_bytes",
] as const;

/** flood: a stream that never ends a line. */
export type FaultKind = (typeof FAULT_KINDS)[number] | (typeof LIE_KINDS)[number] | "flood";

export interface Fault {
  readonly kind: FaultKind;
  /** Output tokens of the request after which the fault begins, where that applies. */
  readonly afterTokens: number;
}

/** Asked once for each request that arrives, in order of arrival. null: nothing happens to it. */
export type FaultPlan = (arrival: number, prompt: readonly number[]) => Fault | null;

export const NO_FAULTS: FaultPlan = () => null;

export interface SeededFaults {
  readonly share: number;
  readonly tokensMax: number;
  readonly kinds: readonly FaultKind[];
  /**
   * Restarts that are still to be shown, by all plans that are given this object. A request that is there at two of
   * them in a row, with no token in between, is blamed for both.
   */
  readonly restarts: { left: number };
}

/** `share` of all requests meet a fault, each kind as often as any other; a restart is ten times as rare. */
export function seededFaults(
  seed: number,
  { share, tokensMax, kinds, restarts }: SeededFaults,
): FaultPlan {
  return (arrival) => {
    const chance = (purpose: number) => fold32(fold32(seed, arrival), purpose) / 2 ** 32;
    if (chance(1) >= share) return null;
    const kind = kinds[Math.floor(chance(2) * kinds.length)];
    if (kind === undefined) return null;
    if (kind === "restart") {
      if (chance(3) >= 0.1 || restarts.left === 0) return null;
      restarts.left -= 1;
    }
    return { kind, afterTokens: Math.floor(chance(4) * tokensMax) };
  };
}
