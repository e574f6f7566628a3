// SGLang's native POST /generate, as slime and miles use it: token ids and logprobs in `meta_info`, whole or as a stream
// whose events hold the output so far. Fields and answers as in sglang/srt/managers/io_struct.py (0.5.23).

import * as v from "valibot";
import { present } from "../../core/base/assert.ts";
import { TOKENS_MAX, TOP_LOGPROBS } from "../../core/request/sampling-bounds.ts";
import { PRIORITY_MAX } from "../../core/schedule/policy.ts";
import { type Answer, idsOf, moved, spanOf } from "../../server/openai/answer.ts";
import * as f from "../../server/openai/fields.ts";
import type { Job } from "../../server/openai/job.ts";
import { metaInfoJson } from "../../server/openai/meta-info.ts";
import { VERSION_FIELD } from "../../server/openai/origin.ts";
import type { Output } from "../../server/openai/output.ts";
import type { ParsedRequest, Prompts, RequestPart } from "../../server/openai/plan.ts";
import {
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "../../server/openai/sampling-fields.ts";
import type { ServedModel } from "../../server/openai/served-model.ts";
import { invalid } from "../../server/route.ts";

const TOKENS_MAX_DEFAULT = 128;
const PROMPTS = "prompts are tokens of text";
const SPLIT = "engines here prefill and decode what they run";

const samplingParams = v.strictObject({
  max_new_tokens: MAX_TOKENS_FIELD,
  min_new_tokens: SAMPLING_ENTRIES.min_tokens,
  n: SAMPLING_ENTRIES.n,
  temperature: SAMPLING_ENTRIES.temperature,
  top_p: SAMPLING_ENTRIES.top_p,
  top_k: SAMPLING_ENTRIES.top_k,
  min_p: SAMPLING_ENTRIES.min_p,
  repetition_penalty: SAMPLING_ENTRIES.repetition_penalty,
  presence_penalty: SAMPLING_ENTRIES.presence_penalty,
  frequency_penalty: SAMPLING_ENTRIES.frequency_penalty,
  logit_bias: SAMPLING_ENTRIES.logit_bias,
  stop: SAMPLING_ENTRIES.stop,
  stop_token_ids: SAMPLING_ENTRIES.stop_token_ids,
  sampling_seed: SAMPLING_ENTRIES.seed,
  ignore_eos: f.flag,
  skip_special_tokens: f.flag,
  spaces_between_special_tokens: f.flag,
  /** The stop text or stop token that ended the response is not removed from the text. */
  no_stop_trim: f.flag,
  /** Parameters of a custom_logit_processor, which is refused: only those read here have an effect. */
  custom_params: v.nullish(f.fieldsOfAnyKind),
  stop_regex: f.unsupported("stop takes texts"),
  json_schema: v.nullish(f.text),
  regex: v.nullish(f.text),
  ebnf: v.nullish(f.text),
  structural_tag: v.nullish(f.text),
  ...f.ignoring("stream_interval"),
});

const SCORES = "prompt_logprobs at /v1/completions of a vLLM worker takes its place";

export const sglangRequest = v.strictObject({
  input_ids: v.nullish(
    v.union([f.tokenList, v.array(f.tokenList)], f.isNot("a list of token ids")),
  ),
  text: v.nullish(v.union([f.text, v.array(f.text)], f.isNot("a text or a list of texts"))),
  sampling_params: f.perPrompt(samplingParams),
  return_logprob: f.perPrompt(f.flag),
  top_logprobs_num: f.perPrompt(TOP_LOGPROBS_FIELD),
  /** -1: logprobs of the output only. */
  logprob_start_len: f.perPrompt(f.unsupported(SCORES, -1)),
  return_text_in_logprobs: f.flag,
  rid: f.perPrompt(f.name),
  group_id: f.name,
  session_id: f.name,
  policy_version: VERSION_FIELD,
  weight_version: VERSION_FIELD,
  priority: f.integer(-PRIORITY_MAX, PRIORITY_MAX),
  stream: f.flag,
  return_hidden_states: f.unsupported("no worker returns them", false),
  /** The answer has the routed experts of all layers for each token but the last: 32-bit numbers in base64. */
  return_routed_experts: f.flag,
  routed_experts_start_len: f.integer(0, TOKENS_MAX),
  /** miles names it in every request. */
  return_indexer_topk: f.unsupported("no worker reports it", false),
  return_entropy: f.unsupported("no worker reports it", false),
  return_prompt_token_ids: f.unsupported("the client has them", false),
  token_ids_logprob: f.unsupported("top_logprobs_num takes its place"),
  ...f.refusing(PROMPTS, "input_embeds", "image_data", "video_data", "audio_data"),
  /** Despite its name, an adapter's name. */
  lora_path: f.perPrompt(f.name),
  /** The equivalent of vLLM's cache_salt. */
  extra_key: f.perPrompt(f.name),
  cache_salt: f.perPrompt(f.name),
  session_params: f.unsupported("send the whole prompt"),
  custom_logit_processor: f.unsupported("no code is run for clients"),
  background: f.unsupported("an answer is not kept for later", false),
  ...f.refusing(SPLIT, "bootstrap_host", "bootstrap_port", "bootstrap_room"),
  model: v.nullish(f.text),
  ...f.ignoring("log_metrics", "no_logs", "routing_key"),
  // The sidecar chooses the engine and its rank itself.
  ...f.ignoring("data_parallel_rank", "routed_dp_rank", "external_trace_header", "modalities"),
  require_reasoning: f.unsupported("structured outputs begin with the response", false),
  ...f.ignoring("conversation_id", "custom_labels", "return_bytes"),
});

type Fields = v.InferOutput<typeof sglangRequest>;

export function parseSglang(fields: Fields): ParsedRequest {
  const { prompts, count, isBatch } = promptsIn(fields);
  const items = itemsOf(fields, count);
  const samples = items[0]?.part.params.n ?? 1;
  if (items.some(({ part }) => (part.params.n ?? 1) !== samples)) {
    throw invalid("sampling_params", "holds different n: SGLang takes one for all prompts");
  }
  const { rid } = fields;
  const about = { items, isList: isBatch || samples > 1, samples };
  return {
    // Both dialects have the fields that are not sampling parameters.
    fields: {
      ...fields,
      request_id: typeof rid === "string" ? rid : null,
    } as ParsedRequest["fields"],
    parts: items.map(({ part }) => part),
    prompts,
    wantsText: true,
    names: Array.isArray(rid) ? rid.map((name) => name ?? "") : undefined,
    answer: (model) => answerOf(model, fields, about),
  };
}

type Params = v.InferOutput<typeof samplingParams>;
type Item = ReturnType<typeof itemsOf>[number];

/** The parameters of each prompt. @throws InvalidFieldError: a list has another length, or a name comes twice. */
function itemsOf(fields: Fields, count: number) {
  const at = <T>(
    field: keyof Fields,
    value: T | readonly T[] | null | undefined,
    index: number,
  ) => {
    if (!Array.isArray(value)) return (value ?? null) as NonNullable<T> | null;
    if (value.length !== count) {
      throw invalid(field, `has ${value.length} entries for ${count} prompts`);
    }
    return (value[index] ?? null) as NonNullable<T> | null;
  };
  const names = Array.isArray(fields.rid) ? fields.rid : [];
  if (new Set(names).size < names.length) throw invalid("rid", "holds a name twice");
  return Array.from({ length: count }, (_, index) => {
    at("rid", fields.rid, index);
    at("logprob_start_len", fields.logprob_start_len, index);
    const params = at("sampling_params", fields.sampling_params, index) ?? {};
    const returnsLogprobs = at("return_logprob", fields.return_logprob, index) ?? false;
    const top = returnsLogprobs ? (at("top_logprobs_num", fields.top_logprobs_num, index) ?? 0) : 0;
    const support = supportWidth(params);
    const salt = at("extra_key", fields.extra_key, index);
    const otherSalt = at("cache_salt", fields.cache_salt, index);
    const { return_routed_experts: experts, routed_experts_start_len: start } = fields;
    const part: RequestPart = {
      params: {
        ...params,
        seed: params.sampling_seed,
        min_tokens: params.min_new_tokens,
        include_stop_str_in_output: params.no_stop_trim,
        structured_outputs: structureOf(params),
        return_routed_experts: experts ?? false,
        ...(experts === true ? { routed_experts_prompt_start: start } : {}),
      },
      at: "sampling_params.",
      tokensMax: params.max_new_tokens ?? TOKENS_MAX_DEFAULT,
      salt: salt !== null && otherSalt !== null ? `${salt} ${otherSalt}` : (salt ?? otherSalt),
      model: at("lora_path", fields.lora_path, index) ?? fields.model,
      topLogprobs: Math.max(top, support),
    };
    return { part, returnsLogprobs, top, support };
  });
}

/** How many tokens to report for slime, whose SGLang reports those that top_p left; 0: none, or too many for us. */
function supportWidth({ custom_params, top_k, temperature }: Params): number {
  if (custom_params?.return_top_p_token_ids !== true) return 0;
  if (temperature === 0) return 1;
  const width = top_k ?? 0;
  return width >= 1 && width <= TOP_LOGPROBS.max ? width : 0;
}

/** Kinds of structured output: SGLang's name, then vLLM's. */
const STRUCTURES = [
  ["json_schema", "json"],
  ["regex", "regex"],
  ["ebnf", "grammar"],
  ["structural_tag", "structural_tag"],
] as const;

/** vLLM's `structured_outputs`; null: free text. @throws InvalidFieldError: more than one kind is set. */
function structureOf(params: Params): Record<string, unknown> | null {
  const [first, second] = STRUCTURES.filter(([name]) => (params[name] ?? null) !== null);
  if (first === undefined) return null;
  if (second !== undefined) {
    throw invalid(`sampling_params.${second[0]}`, `and ${first[0]} are both set`);
  }
  const [name, kind] = first;
  return { [kind]: params[name] };
}

function promptsIn({ input_ids: ids, text: written }: Fields): {
  readonly prompts: Prompts;
  readonly count: number;
  readonly isBatch: boolean;
} {
  const hasIds = ids !== null && ids !== undefined;
  if (hasIds === (written !== null && written !== undefined)) {
    throw invalid("input_ids", "or text must be there, and not both");
  }
  if (!hasIds) {
    const texts = typeof written === "string" ? [written] : (written ?? []);
    if (texts.length === 0) throw invalid("text", "is empty");
    const prompts: Prompts = { kind: "texts", texts, names: () => "text", addSpecial: true };
    return { prompts, count: texts.length, isBatch: typeof written !== "string" };
  }
  if (ids.length === 0) throw invalid("input_ids", "holds no tokens");
  const isBatch = !f.isTokenList(ids);
  const lists = isBatch ? ids : [ids];
  const names = (index: number) => (isBatch ? `input_ids.${index}` : "input_ids");
  return { prompts: { kind: "tokens", lists, names }, count: lists.length, isBatch };
}

/** `samples`: number of responses to each prompt. */
function answerOf(
  model: ServedModel,
  { rid, ...fields }: Fields,
  about: { items: readonly Item[]; isList: boolean; samples: number },
): Answer {
  const { items, isList, samples } = about;
  const idOf = (job: Job, index: number) => {
    if (!isList) return job.id;
    if (!Array.isArray(rid)) return `${job.id}_${index}`;
    const name = rid[Math.floor(index / samples)] ?? job.id;
    return samples === 1 ? name : `${name}_${index % samples}`;
  };
  const responseJson = (job: Job, output: Output) => {
    const item = present(items[Math.floor(output.index / samples)], "each prompt has its item");
    const meta = metaInfoJson(output, {
      ...item,
      id: idOf(job, output.index),
      model,
      writesTokens: fields.return_text_in_logprobs ?? false,
      returnsExperts: fields.return_routed_experts ?? false,
    });
    const index = isList ? `,"index":${output.index}` : "";
    const written = JSON.stringify(output.pieces.join(""));
    return `{"text":${written},"output_ids":${idsOf(spanOf(output))},"meta_info":${meta}${index}}`;
  };
  return {
    whole(job) {
      const parts = job.outputs.map((output) => responseJson(job, output));
      return isList ? `[${parts.join(",")}]` : (parts[0] ?? "null");
    },
    /** Each event holds the whole response so far, as in SGLang without --incremental-streaming-output. */
    stream: (job) => ({
      delta(output, cursor) {
        if (output.finish === null && output.tokens <= cursor.tokens) return "";
        moved(cursor, output);
        return `data: ${responseJson(job, output)}\n\n`;
      },
    }),
  };
}
