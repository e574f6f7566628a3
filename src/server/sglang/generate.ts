// SGLang's native POST /generate and GET /workers, as slime and miles use them: one request per sample, token
// ids and logprobs in `meta_info`. Fields and answers as in sglang/srt/managers/io_struct.py.

import * as v from "valibot";
import { AppError } from "../../base/errors.ts";
import { spanOf } from "../openai/completions.ts";
import type { StreamView } from "../openai/event-stream.ts";
import {
  checked,
  fieldsOfAnyKind,
  flag,
  ignored,
  integer,
  isNot,
  isTokenList,
  name,
  text,
  tokenList,
  unsupported,
} from "../openai/fields.ts";
import type { Job } from "../openai/job.ts";
import { logprobText } from "../openai/json.ts";
import { originOf, VERSION_FIELD } from "../openai/origin.ts";
import type { Output } from "../openai/output.ts";
import type { Answer, DataPlane, Prepared } from "../openai/plane.ts";
import {
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "../openai/sampling-fields.ts";
import type { Exchange } from "../route.ts";

/** SGLang's. */
const TOKENS_MAX_DEFAULT = 128;
const PROMPTS = "prompts are tokens of text";
const STRUCTURE = "structured_outputs at a vLLM endpoint takes its place";

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
  ignore_eos: flag,
  skip_special_tokens: flag,
  spaces_between_special_tokens: flag,
  /** What ended the response stays in the text. */
  no_stop_trim: flag,
  /** For a custom_logit_processor, which is refused: without one they change nothing but what is read here. */
  custom_params: v.nullish(fieldsOfAnyKind),
  stop_regex: unsupported("stop takes texts"),
  json_schema: unsupported(STRUCTURE),
  regex: unsupported(STRUCTURE),
  ebnf: unsupported(STRUCTURE),
  structural_tag: unsupported(STRUCTURE),
  stream_interval: ignored,
});

export const sglangRequest = v.strictObject({
  input_ids: v.nullish(v.union([tokenList, v.array(tokenList)], isNot("a list of token ids"))),
  text: v.nullish(v.union([text, v.array(text)], isNot("a text or a list of texts"))),
  sampling_params: v.nullish(samplingParams),
  return_logprob: flag,
  top_logprobs_num: TOP_LOGPROBS_FIELD,
  /** -1: only the output's, which is all that there is. */
  logprob_start_len: unsupported("no worker computes logprobs of prompts", -1),
  return_text_in_logprobs: flag,
  rid: name,
  group_id: name,
  session_id: name,
  policy_version: VERSION_FIELD,
  weight_version: VERSION_FIELD,
  priority: integer(-(2 ** 31), 2 ** 31 - 1),
  stream: unsupported("stream from a vLLM endpoint", false),
  return_hidden_states: unsupported("no worker returns them", false),
  return_routed_experts: unsupported("no worker reports experts", false),
  token_ids_logprob: unsupported("top_logprobs_num takes its place"),
  input_embeds: unsupported(PROMPTS),
  image_data: unsupported(PROMPTS),
  video_data: unsupported(PROMPTS),
  audio_data: unsupported(PROMPTS),
  /** An adapter's name. */
  lora_path: name,
  /** As vLLM's cache_salt. */
  extra_key: name,
  session_params: unsupported("send the whole prompt"),
  custom_logit_processor: unsupported("no code is run for clients"),
  model: v.nullish(text),
  log_metrics: ignored,
  return_bytes: ignored,
});

type Fields = v.InferOutput<typeof sglangRequest>;

export async function prepareSglang(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const fields = checked(sglangRequest, body);
  plane.checkModel(fields.lora_path ?? fields.model);
  const params = fields.sampling_params ?? {};
  const tokensMax = params.max_new_tokens ?? TOKENS_MAX_DEFAULT;
  const extraArgs = { ...params.custom_params };
  const named = { ...fields, cache_salt: fields.extra_key };
  const origin = originOf(exchange.headers, named, extraArgs);
  const topLogprobs = fields.return_logprob === true ? (fields.top_logprobs_num ?? 0) : 0;
  const drawing = drawingOf(
    {
      ...params,
      seed: params.sampling_seed,
      min_tokens: params.min_new_tokens,
      include_stop_str_in_output: params.no_stop_trim,
    },
    { topLogprobs, tokensMax, extraArgs: {} },
    plane.samplingContext("sampling_params."),
  );
  const { prompts, isBatch } = await promptsOf(fields, plane, exchange);
  const about = {
    tokensMax,
    clamps: false,
    origin,
    priority: fields.priority ?? 0,
    model: fields.lora_path ?? fields.model,
  };
  return {
    specs: plane.specsOf(prompts, drawing, about),
    stops: drawing.stops,
    wantsText: true,
    isStream: false,
    requestId: fields.rid ?? null,
    answer: new SglangAnswer(plane, fields, isBatch || drawing.n > 1),
  };
}

async function promptsOf(
  { input_ids: ids, text: written }: Fields,
  plane: DataPlane,
  exchange: Exchange,
): Promise<{ prompts: Int32Array[]; isBatch: boolean }> {
  const hasIds = ids !== null && ids !== undefined;
  if (hasIds === (written !== null && written !== undefined)) {
    throw invalid("input_ids", "or text must be there, and not both");
  }
  if (hasIds) {
    if (ids.length === 0) throw invalid("input_ids", "holds no tokens");
    if (isTokenList(ids)) return { prompts: [plane.promptOf(ids, "input_ids")], isBatch: false };
    return { prompts: ids.map((one, i) => plane.promptOf(one, `input_ids.${i}`)), isBatch: true };
  }
  const texts = typeof written === "string" ? [written] : (written ?? []);
  if (texts.length === 0) throw invalid("text", "is empty");
  const encoding = plane.encoding(exchange, { addSpecial: true, truncates: false });
  const prompts = await plane.encoder.encode(texts, encoding);
  if (prompts.some((tokens) => tokens.length === 0)) throw invalid("text", "holds no tokens");
  return { prompts, isBatch: typeof written !== "string" };
}

class SglangAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #isList: boolean;
  readonly #returnsLogprobs: boolean;
  readonly #writesTokens: boolean;
  readonly #top: number;

  constructor(plane: DataPlane, fields: Fields, isList: boolean) {
    this.#plane = plane;
    this.#isList = isList;
    this.#returnsLogprobs = fields.return_logprob ?? false;
    this.#writesTokens = fields.return_text_in_logprobs ?? false;
    this.#top = fields.top_logprobs_num ?? 0;
  }

  whole(job: Job): string {
    const parts = job.outputs.map((output) => this.#one(job, output));
    return this.#isList ? `[${parts.join(",")}]` : (parts[0] ?? "null");
  }

  stream(): StreamView {
    throw new AppError("invalid_field", "stream: this endpoint does not stream");
  }

  #one(job: Job, output: Output): string {
    const span = spanOf(output, 0);
    const ids = span === null ? [] : [...span.response.tokens().subarray(0, span.to)];
    const versions = output.weightSpans(this.#plane.version);
    const cached = output.response?.promptTokensCached ?? null;
    const id = this.#isList ? `${job.id}-${output.index}` : job.id;
    const meta = {
      id,
      finish_reason: finishOf(output),
      prompt_tokens: output.prompt.length,
      completion_tokens: output.tokens,
      ...(cached === null ? {} : { cached_tokens: cached }),
      weight_version: versions.at(-1)?.version ?? null,
      weight_versions: versions,
    };
    const logprobs = this.#returnsLogprobs ? this.#logprobs(output) : "";
    const metaJson = `${JSON.stringify(meta).slice(0, -1)}${logprobs}}`;
    return `{"text":${JSON.stringify(output.pieces.join(""))},"output_ids":${JSON.stringify(ids)},"meta_info":${metaJson}}`;
  }

  /** Triples of logprob, token id and, where asked for, text. */
  #logprobs(output: Output): string {
    const span = spanOf(output, 0);
    const triples: string[] = [];
    const rows: string[] = [];
    const tokens = span?.response.tokens() ?? [];
    const logprobs = span?.response.logprobs() ?? [];
    const top = span?.response.topLogprobs() ?? null;
    for (let i = 0; i < output.tokens; i += 1) {
      triples.push(this.#triple(logprobs[i] ?? 0, tokens[i] ?? 0));
      if (top === null) continue;
      const row: string[] = [];
      for (let k = i * top.count; k < (i + 1) * top.count; k += 1) {
        const token = top.tokens[k] ?? -1;
        if (token >= 0) row.push(this.#triple(top.logprobs[k] ?? 0, token));
      }
      rows.push(`[${row.join(",")}]`);
    }
    const tops = this.#top > 0 ? `,"output_top_logprobs":[${rows.join(",")}]` : "";
    return `,"output_token_logprobs":[${triples.join(",")}]${tops}`;
  }

  #triple(logprob: number, token: number): string {
    const written = this.#writesTokens ? this.#plane.writtenNames.json(token) : "null";
    return `[${logprobText(logprob)},${token},${written}]`;
  }
}

function finishOf(output: Output): object {
  switch (output.finish) {
    case "length":
      return { type: "length", length: output.tokens };
    case "abort":
      return { type: "abort", message: "Abort before completion" };
    default: {
      const last = output.response?.tokens()[output.tokens - 1];
      return { type: "stop", matched: output.stopReason ?? last ?? null };
    }
  }
}
