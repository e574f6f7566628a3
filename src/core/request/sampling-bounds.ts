// The range of every sampling parameter. The HTTP edge builds its schemas from it, the command line and the
// embedded engine check with it: whatever passes can be drawn with by every engine, in float32.
// An engine's own limits (context, KV, supported parameters) are checked elsewhere, where they are known.

import { type LogitShaping, NO_SHAPING, type SamplingParams } from "./request.ts";

export interface Range {
  readonly min: number;
  readonly max: number;
}

/** Counts and token ids travel in 32 signed bits. */
export const TOKENS_MAX = 2 ** 31 - 1;

/**
 * Temperatures other than 0, which means greedy. Below the minimum, the smallest difference of two float32 logits decides
 * with certainty; above the maximum all tokens are equally likely.
 */
export const TEMPERATURE: Range = { min: 1e-10, max: 1e6 };
export const TOP_K: Range = { min: 0, max: TOKENS_MAX };
/** Excludes `min`, includes `max`. */
export const TOP_P: Range = { min: 0, max: 1 };
export const MIN_P: Range = { min: 0, max: 1 };
/** Logits are below 1e4: times or divided by these they stay far from the end of float32. */
export const REPETITION_PENALTY: Range = { min: 1e-3, max: 1e3 };
export const PRESENCE_PENALTY: Range = { min: -2, max: 2 };
export const FREQUENCY_PENALTY: Range = { min: -2, max: 2 };
/** As in OpenAI's API: enough to forbid or to force a token. */
export const LOGIT_BIAS: Range = { min: -100, max: 100 };
const LOGIT_BIAS_ENTRIES_MAX = 4096;
export const STOP_TOKENS_MAX = 4096;
export const MIN_TOKENS: Range = { min: 0, max: TOKENS_MAX };
export const MAX_TOKENS: Range = { min: 1, max: TOKENS_MAX };
export const SEED: Range = { min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER };
/** vLLM's own bound on logprobs (max_logprobs). */
export const TOP_LOGPROBS: Range = { min: 0, max: 20 };

/** A parameter out of its range, under the name that clients use. */
export interface OutOfBounds {
  readonly field: string;
  readonly value: string;
  readonly bound: string;
}

function boundOf({ min, max }: Range): string {
  return `in ${min}..${max}`;
}

export const TEMPERATURE_BOUND = `0 or ${boundOf(TEMPERATURE)}`;

export function isTemperature(value: number): boolean {
  return value === 0 || isWithin(value, TEMPERATURE);
}

/** "is 1e-320, not 0 or in 1e-10..1000000": the part of a message after the field's name. */
export function problemOf({ value, bound }: OutOfBounds): string {
  return `is ${value}, not ${bound}`;
}

/** The first parameter that is out of its range; null: there is none. */
export function outOfBounds(
  sampling: SamplingParams,
  { vocabularySize }: { vocabularySize: number },
): OutOfBounds | null {
  const { temperature, seed, tokensMax, stopTokenIds: stops, topLogprobs } = sampling;
  const { tokensMin, topK, topP, minP, logitBias, ...penalties } = sampling.shaping ?? NO_SHAPING;
  const { repetitionPenalty, presencePenalty, frequencyPenalty } = penalties;
  if (!isTemperature(temperature)) {
    return { field: "temperature", value: String(temperature), bound: TEMPERATURE_BOUND };
  }
  if (!(topP > TOP_P.min && topP <= TOP_P.max)) {
    return { field: "top_p", value: String(topP), bound: "> 0 and <= 1" };
  }
  return (
    whole("seed", seed, SEED) ??
    whole("max_tokens", tokensMax, MAX_TOKENS) ??
    whole("logprobs", topLogprobs, TOP_LOGPROBS) ??
    whole("min_tokens", tokensMin, MIN_TOKENS) ??
    whole("top_k", topK, TOP_K) ??
    real("min_p", minP, MIN_P) ??
    real("repetition_penalty", repetitionPenalty, REPETITION_PENALTY) ??
    real("presence_penalty", presencePenalty, PRESENCE_PENALTY) ??
    real("frequency_penalty", frequencyPenalty, FREQUENCY_PENALTY) ??
    tooMany("stop_token_ids", stops.length, STOP_TOKENS_MAX) ??
    first(stops, (token) => whole("stop_token_ids", token, { min: 0, max: TOKENS_MAX })) ??
    tooMany("logit_bias", logitBias.length, LOGIT_BIAS_ENTRIES_MAX) ??
    first(logitBias, (entry) => wrongBias(entry, { min: 0, max: vocabularySize - 1 })) ??
    (tokensMin === 0 ? null : nothingLeft(tokensMin, stops, vocabularySize))
  );
}

function first<T>(all: readonly T[], check: (one: T) => OutOfBounds | null): OutOfBounds | null {
  for (const one of all) {
    const problem = check(one);
    if (problem !== null) return problem;
  }
  return null;
}

function wrongBias(
  { token, bias }: LogitShaping["logitBias"][number],
  tokens: Range,
): OutOfBounds | null {
  const field = "logit_bias";
  if (whole(field, token, tokens) !== null) {
    return { field, value: `for token ${token}`, bound: `one ${boundOf(tokens)}` };
  }
  if (isWithin(bias, LOGIT_BIAS)) return null;
  return { field, value: `${bias} for token ${token}`, bound: boundOf(LOGIT_BIAS) };
}

/** A problem if the vocabulary has stop tokens only: with all masked until `tokensMin`, none could be drawn. null: none. */
function nothingLeft(
  tokensMin: number,
  stops: readonly number[],
  vocabularySize: number,
): OutOfBounds | null {
  const known = new Set(stops.filter((token) => token < vocabularySize));
  if (known.size < vocabularySize) return null;
  const bound = `0, as all ${vocabularySize} tokens of the vocabulary are stop tokens`;
  return { field: "min_tokens", value: String(tokensMin), bound };
}

function tooMany(field: string, count: number, max: number): OutOfBounds | null {
  if (count <= max) return null;
  return { field, value: `a list of ${count}`, bound: `one of at most ${max}` };
}

function whole(field: string, value: number, range: Range): OutOfBounds | null {
  if (Number.isInteger(value) && isWithin(value, range)) return null;
  return { field, value: String(value), bound: `a whole number ${boundOf(range)}` };
}

function real(field: string, value: number, range: Range): OutOfBounds | null {
  return isWithin(value, range) ? null : { field, value: String(value), bound: boundOf(range) };
}

function isWithin(value: number, { min, max }: Range): boolean {
  return value >= min && value <= max;
}
