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

/** Parameters that vLLM has under the same names. */
const DRAWING = ["temperature", "top_p", "top_k", "min_p", "logit_bias"] as const;
const PENALTIES = ["repetition_penalty", "presence_penalty", "frequency_penalty"] as const;
const ENDS = ["stop", "stop_token_ids", "ignore_eos"] as const;
const TEXTS = ["skip_special_tokens", "spaces_between_special_tokens"] as const;
const SAME = ["n", ...DRAWING, ...PENALTIES, ...ENDS, ...TEXTS] as const;
const { entries: SAME_ENTRIES } = v.pick(v.object(SAMPLING_ENTRIES), SAME);

const samplingParams = v.strictObject({
  max_new_tokens: MAX_TOKENS_FIELD,
  min_new_tokens: SAMPLING_ENTRIES.min_tokens,
  ...SAME_ENTRIES,
  sampling_seed: SAMPLING_ENTRIES.seed,
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

/** A field's value for one prompt. */
type One<K extends keyof Fields> = Exclude<NonNullable<Fields[K]>, readonly unknown[]> | null;

/** The parameters of each prompt. @throws InvalidFieldError: a list has another length, or a name comes twice. */
function itemsOf(fields: Fields, count: number) {
  const at = <K extends keyof Fields>(field: K, index: number): One<K> => {
    const value: unknown = fields[field];
    if (!Array.isArray(value)) return (value ?? null) as One<K>;
    if (value.length === count) return (value[index] ?? null) as One<K>;
    throw invalid(field, `has ${value.length} entries for ${count} prompts`);
  };
  const names = Array.isArray(fields.rid) ? fields.rid : [];
  if (new Set(names).size < names.length) throw invalid("rid", "holds a name twice");
  const { return_routed_experts: experts, routed_experts_start_len: start } = fields;
  return Array.from({ length: count }, (_, index) => {
    at("rid", index);
    at("logprob_start_len", index);
    const params = at("sampling_params", index) ?? {};
    const returnsLogprobs = at("return_logprob", index) ?? false;
    const top = returnsLogprobs ? (at("top_logprobs_num", index) ?? 0) : 0;
    const support = supportWidth(params);
    const salts = [at("extra_key", index), at("cache_salt", index)].filter((one) => one !== null);
    const part: RequestPart = {
      params: {
        ...params,
        seed: params.sampling_seed,
        min_tokens: params.min_new_tokens,
        include_stop_str_in_output: params.no_stop_trim,
        structured_outputs: structureOf(params),
        return_routed_experts: experts ?? false,
        routed_experts_prompt_start: start,
      },
      at: "sampling_params.",
      tokensMax: params.max_new_tokens ?? TOKENS_MAX_DEFAULT,
      salt: salts.length === 0 ? null : salts.join(" "),
      model: at("lora_path", index) ?? fields.model,
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

/** vLLM's kinds of structured output, by SGLang's names. */
const STRUCTURES = {
  json_schema: "json",
  regex: "regex",
  ebnf: "grammar",
  structural_tag: "structural_tag",
} as const;

/** vLLM's `structured_outputs`; null: free text. @throws InvalidFieldError: more than one kind is set. */
function structureOf(params: Params): Record<string, unknown> | null {
  const names = Object.keys(STRUCTURES) as (keyof typeof STRUCTURES)[];
  const [name, other] = names.filter((one) => (params[one] ?? null) !== null);
  if (name === undefined) return null;
  if (other === undefined) return { [STRUCTURES[name]]: params[name] };
  throw invalid(`sampling_params.${other}`, `and ${name} are both set`);
}

function promptsIn({ input_ids: ids = null, text: written = null }: Fields) {
  if ((ids === null) === (written === null)) {
    throw invalid("input_ids", "or text must be there, and not both");
  }
  const field = ids === null ? "text" : "input_ids";
  const given = ids ?? written ?? [];
  if (given.length === 0) throw invalid(field, ids === null ? "is empty" : "holds no tokens");
  const isBatch = typeof given !== "string" && !f.isTokenList(given);
  const names = (index: number) => (isBatch && ids !== null ? `${field}.${index}` : field);
  const all = (isBatch ? given : [given]) as readonly string[] & readonly f.TokenList[];
  const prompts: Prompts =
    ids === null
      ? { kind: "texts", texts: all, names, addSpecial: true }
      : { kind: "tokens", lists: all, names };
  return { prompts, count: all.length, isBatch };
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
