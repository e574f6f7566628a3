// The doctor's finding of one check.

import type { DividedCheck } from "../../engines/vllm/divided-check.ts";

/** ok. info: good to know. warn: it works worse than it could. fail: a rollout over it would be wrong. */
export type Severity = "ok" | "info" | "warn" | "fail";

export interface Finding {
  /** Name of the check in a few words, the same for every engine. */
  readonly check: string;
  readonly verdict: Severity;
  /** The observation, and its consequence. */
  readonly reason: string;
  /** A remedy; null: none. */
  readonly fix: string | null;
}

export interface Diagnosis {
  readonly url: string;
  readonly version: string | null;
  readonly model: string | null;
  readonly findings: readonly Finding[];
}

export function ok(check: string, reason: string): Finding {
  return { check, verdict: "ok", reason, fix: null };
}

export function info(check: string, reason: string): Finding {
  return { check, verdict: "info", reason, fix: null };
}

export function warn(check: string, reason: string, fix: string): Finding {
  return { check, verdict: "warn", reason, fix };
}

export function fail(check: string, reason: string, fix: string): Finding {
  return { check, verdict: "fail", reason, fix };
}

export const CHUNKS = "chunks at temperature 0";
/** Logprob difference in nats below which two tokens count as tied: arithmetic in bfloat16 differs with the batch. */
const TIE = 0.25;

const FIX =
  "compare --dtype float32 and another attention backend, drafts off; report it to the engine's makers";

export function chunksFinding({ at, gapNats, tokens, chunks }: DividedCheck): Finding {
  if (at < 0) return ok(CHUNKS, `${tokens} tokens, whole and in ${chunks} chunks: the same`);
  const where = `whole and in chunks differ from token ${at} on, where the two likeliest are ${gapNats.toFixed(3)} nats apart`;
  if (gapNats < TIE) return warn(CHUNKS, `${where}: rounding, as it happens in bfloat16`, FIX);
  return fail(CHUNKS, where, FIX);
}
