// What a request is: one response being made for one prompt. Plain data, shared by every layer.

import { fold32, hashString } from "../base/hash.ts";
import type { GroupId, RequestId } from "../base/ids.ts";

/** Changes to the logits before a token is drawn. Semantics and names as in vLLM's SamplingParams. */
export interface LogitShaping {
  /** Stop tokens cannot be drawn before this many output tokens, >= 0. */
  readonly tokensMin: number;
  /** Only the `topK` likeliest tokens, >= 1; 0: all. */
  readonly topK: number;
  /** Only the likeliest tokens that hold this much probability, 0 < topP <= 1. */
  readonly topP: number;
  /** Only tokens at least this likely relative to the likeliest, 0 <= minP <= 1. */
  readonly minP: number;
  /** Divides positive and multiplies negative logits of tokens in prompt or output, > 0; 1: off. */
  readonly repetitionPenalty: number;
  /** Subtracted once from tokens in the output, -2..2; 0: off. */
  readonly presencePenalty: number;
  /** Subtracted for each occurrence in the output, -2..2; 0: off. */
  readonly frequencyPenalty: number;
  readonly logitBias: readonly { readonly token: number; readonly bias: number }[];
}

export const NO_SHAPING: LogitShaping = {
  tokensMin: 0,
  topK: 0,
  topP: 1,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: [],
};

/** How tokens are drawn. `temperature` 0 means greedy (lowest token id wins a tie). */
export interface SamplingParams {
  /** >= 0. */
  readonly temperature: number;
  /** Any safe integer; with the group id and the sample index it keys every random number. */
  readonly seed: number;
  /** Upper bound on output tokens, >= 1. */
  readonly tokensMax: number;
  /** Tokens that end the response; the one that ended it is the response's last token. */
  readonly stopTokenIds: readonly number[];
  /** null: logits are used as they are. */
  readonly shaping: LogitShaping | null;
  /** Likeliest alternatives reported with every token, 0..20. */
  readonly topLogprobs: number;
  /** Further fields of the engine's own API, passed on unchanged (`structured_outputs`, ...); null: none. */
  readonly engineFields: Readonly<Record<string, unknown>> | null;
  /** Names of engine fields without state from token to token: a response with them can be divided. Absent: none. */
  readonly statelessFields?: readonly string[];
  /** An adapter (LoRA) on top of the model's weights; null or absent: none. */
  readonly adapter?: string | null;
  /** Requests share KV and drafts only with those that have the same, as in vLLM; null or absent: none. */
  readonly cacheSalt?: string | null;
}

/** Engine fields that ask for a report about the prompt: one response of a group is enough for it. */
export const PROMPT_FIELDS = [
  "prompt_logprobs",
  "prompt_logprob_token_ids",
  "prompt_logprob_start",
] as const;

/** The same sampling without a report about the prompt, for a sibling of the response that brings it. */
export function withoutPromptReport(sampling: SamplingParams): SamplingParams {
  const { engineFields } = sampling;
  if (engineFields === null || !reportsPrompt(sampling)) return sampling;
  const others = Object.entries(engineFields).filter(
    ([field]) => !PROMPT_FIELDS.some((name) => name === field),
  );
  return { ...sampling, engineFields: others.length === 0 ? null : Object.fromEntries(others) };
}

/** Whether a request wants a report about its prompt (logprobs). */
export function reportsPrompt({ engineFields }: SamplingParams): boolean {
  if (engineFields === null) return false;
  return PROMPT_FIELDS.some((field) => (engineFields[field] ?? null) !== null);
}

/** The first position whose routed experts are wanted; null: none are. */
export function expertsFrom({ engineFields }: SamplingParams): number | null {
  if (engineFields?.return_routed_experts !== true) return null;
  return Number(engineFields.routed_experts_prompt_start ?? 0);
}

export const SAMPLING_DEFAULTS = {
  shaping: null,
  topLogprobs: 0,
  engineFields: null,
} as const satisfies Partial<SamplingParams>;

/** Why a response ended: a stop token, `tokensMax`, or an abort, after which its length says nothing about others. */
export type FinishReason = "stop" | "length" | "abort";

/** Key of a response's random numbers: two 32-bit words. */
export interface DrawKey {
  readonly hi: number;
  readonly lo: number;
}

/** The key of a response: it depends on the seed, the group's name and the index in the group, and on nothing else. */
export const drawKey = (seed: number, group: string, at: number) => drawKeys(seed, group)(at);

export function drawKeys(seed: number, group: string): (index: number) => DrawKey {
  const seedHigh = Math.floor(seed / 4294967296) | 0;
  const half = (salt: number) => hashString(group, fold32(fold32(salt, seed | 0), seedHigh));
  const high = half(0x243f6a88);
  const low = half(0x85a308d3);
  return (index) => ({ hi: fold32(high, index), lo: fold32(low, index) });
}

export interface RequestSpec {
  readonly requestId: RequestId;
  readonly groupId: GroupId;
  /** Index within the group, 0 <= sampleIndex < group size. */
  readonly sampleIndex: number;
  readonly prompt: Int32Array;
  readonly sampling: SamplingParams;
  /** Key of its random numbers; siblings share `sampling.seed`. vLLM gets a seed for each chunk, from key and offset. */
  readonly draw: DrawKey;
  /** false: some of its sampling state lives in the engine, so it must run in one piece. */
  readonly divisible: boolean;
  /** Tokens at the prompt's end that are new since the session's turn before; siblings draft from them, too. Default: 0. */
  readonly leadTokens?: number;
  /** true: the finished request's KV stays parked for the next turn of its session. Default: false. */
  readonly keepsKv?: boolean;
}
