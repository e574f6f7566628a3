// The body of one chunk's request: sampling parameters under vLLM's names, for either of its endpoints.
// To the server every chunk is a request of its own, whose prompt is the prompt and the output so far.

import { fold32 } from "../../core/base/hash.ts";
import { type DrawKey, PROMPT_FIELDS } from "../../core/request/request.ts";
import type { ChunkRequest, RequestForm } from "./dialect.ts";

/** Fields that are not copied from the request: `form` and `expertsFrom` decide for each chunk what is reported. */
const REPORT_FIELDS: ReadonlySet<string> = new Set([
  ...PROMPT_FIELDS,
  "return_routed_experts",
  "routed_experts_prompt_start",
]);

/** Fields of GenerateRequest that stand beside `sampling_params`. */
const GENERATE_TOP_FIELDS = new Set(["reasoning_ended", "reasoning_parser_kwargs"]);

/**
 * The seed of the part of a response that begins at `offset`: 52 bits. vLLM's V1 runner starts a random
 * generator from it, so two parts with one seed would be drawn with the same random numbers.
 */
export function chunkSeed(draw: DrawKey, offset: number): number {
  const high = fold32(draw.hi, offset);
  const low = fold32(draw.lo, offset);
  return (high >>> 6) * 67_108_864 + (low >>> 6);
}

export function chunkBody(chunk: ChunkRequest, form: RequestForm): string {
  const { spec, tokensMax } = chunk;
  const { sampling } = spec;
  const { engineFields } = sampling;
  const isGenerate = form.endpoint === "generate";
  const extra = {
    ...objectOf(engineFields?.extra_args),
    foretoken_group: chunk.draft?.groupId ?? spec.groupId,
    foretoken_sample: chunk.draft?.sampleIndex ?? spec.sampleIndex,
    foretoken_offset: chunk.offset + (chunk.draft?.turn?.leadTokens ?? 0),
    ...(chunk.draft?.turn && { foretoken_prompt: chunk.draft.turn.promptTokens }),
    ...(spec.keepsKv === true && { foretoken_keep: 1 }),
    foretoken_last: chunk.isLast ? 1 : 0,
    foretoken_draft: chunk.draft === null ? 0 : 1,
    foretoken_run: chunk.run,
    foretoken_epoch: chunk.epoch,
    // The seed of the whole response, for engines whose noise depends on a token's place alone.
    ...(isSeeded(chunk, form) && { foretoken_seed: chunkSeed(spec.draw, 0) }),
  };
  const top: Record<string, unknown> = {
    model: sampling.adapter ?? form.model,
    request_id: chunk.name,
    ...streaming(chunk, form),
    cache_salt: chunk.cacheSalt,
    ...(form.hasPriorities ? { priority: chunk.priority } : {}),
  };
  const params: Record<string, unknown> = {
    max_tokens: tokensMax,
    ...drawing(chunk, form),
    logprobs: logprobsAsked(sampling.topLogprobs, form),
    ...(form.hasStreamSettings && chunk.form === "stream"
      ? { stream_interval: chunk.streamInterval }
      : {}),
  };
  if (chunk.expertsFrom !== null) params.routed_experts_prompt_start = chunk.expertsFrom;
  for (const [field, value] of Object.entries(engineFields ?? {})) {
    if (value === null || field === "extra_args") continue;
    if (REPORT_FIELDS.has(field) && !isReported(field, chunk)) continue;
    if (isGenerate && GENERATE_TOP_FIELDS.has(field)) top[field] = value;
    else params[field] = value;
  }
  // The ids are written by hand: they are most of the body, and JSON.stringify would want a plain array.
  const ids = `[${chunk.tokens.join(",")}]`;
  if (isGenerate) {
    // Stop strings need the text, and a report on the prompt names tokens by theirs.
    if (chunk.form !== "whole" && engineFields?.stop === undefined) params.detokenize = false;
    params.extra_args = extra;
    return `{"token_ids":${ids},${JSON.stringify({ ...top, sampling_params: params }).slice(1)}`;
  }
  const completion = {
    ...top,
    ...params,
    vllm_xargs: extra,
    return_token_ids: true,
    return_tokens_as_token_ids: true,
    add_special_tokens: false,
  };
  return `{"prompt":${ids},${JSON.stringify(completion).slice(1)}`;
}

function streaming({ form }: ChunkRequest, { hasStreamSettings }: RequestForm): object {
  if (form === "whole") return { stream: false };
  const counted = hasStreamSettings ? { continuous_usage_stats: true } : {};
  return { stream: true, stream_options: { include_usage: true, ...counted } };
}

function isReported(field: string, { form }: ChunkRequest): boolean {
  return form === "whole" && PROMPT_FIELDS.some((name) => name === field);
}

/**
 * How many logprobs to request. `generate` counts the drawn token among them, and omits the least likely one
 * in its place (seen in 0.32): so one more is requested where that is allowed.
 */
function logprobsAsked(topLogprobs: number, { endpoint, logprobsMax }: RequestForm): number {
  if (topLogprobs === 0 || endpoint === "completions") return topLogprobs;
  return Math.min(topLogprobs + 1, Math.max(logprobsMax, topLogprobs));
}

/** Whether to send a seed. A greedy request needs none, and a seed would cost the server a generator. */
function isSeeded({ spec }: ChunkRequest, { hasSeeds }: RequestForm): boolean {
  return hasSeeds && spec.sampling.temperature > 0;
}

function drawing(chunk: ChunkRequest, form: RequestForm): Record<string, unknown> {
  const { spec, offset } = chunk;
  const { temperature, stopTokenIds } = spec.sampling;
  const fields: Record<string, unknown> = {
    temperature,
    // With `ignore_eos` the server ends at `stop_token_ids` and at nothing else, the model's EOS included.
    ignore_eos: true,
    stop_token_ids: stopTokenIds,
  };
  if (isSeeded(chunk, form)) fields.seed = chunkSeed(spec.draw, offset);
  return Object.assign(fields, shapingFields(chunk, "min_tokens"));
}

function objectOf(value: unknown): object {
  return typeof value === "object" && value !== null ? value : {};
}

export function shapingFields(
  { spec, offset, tokensMax }: ChunkRequest,
  tokensMinName: "min_tokens" | "min_new_tokens",
): Record<string, unknown> {
  const { shaping } = spec.sampling;
  if (shaping === null) return {};
  const fields: Record<string, unknown> = {};
  const tokensMin = Math.min(Math.max(0, shaping.tokensMin - offset), tokensMax);
  if (tokensMin > 0) fields[tokensMinName] = tokensMin;
  if (shaping.topK > 0) fields.top_k = shaping.topK;
  if (shaping.topP < 1) fields.top_p = shaping.topP;
  if (shaping.minP > 0) fields.min_p = shaping.minP;
  if (shaping.repetitionPenalty !== 1) fields.repetition_penalty = shaping.repetitionPenalty;
  if (shaping.presencePenalty !== 0) fields.presence_penalty = shaping.presencePenalty;
  if (shaping.frequencyPenalty !== 0) fields.frequency_penalty = shaping.frequencyPenalty;
  if (shaping.logitBias.length > 0) {
    fields.logit_bias = Object.fromEntries(
      shaping.logitBias.map(({ token, bias }) => [String(token), bias]),
    );
  }
  return fields;
}
