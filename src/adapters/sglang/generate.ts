// SGLang's native POST /generate, as slime and miles use it: token ids and logprobs in `meta_info`, whole or as a stream
// whose events hold the output so far. Fields and answers as in sglang/srt/managers/io_struct.py (0.5.23).

import * as v from "valibot";
import { present } from "../../core/base/assert.ts";
import { TOKENS_MAX, TOP_LOGPROBS } from "../../core/request/sampling-bounds.ts";
import { advanced, spanOf } from "../../server/openai/completions.ts";
import type { StreamView } from "../../server/openai/event-stream.ts";
import {
  checked,
  fieldsOfAnyKind,
  flag,
  ignored,
  integer,
  isNot,
  isTokenList,
  name,
  perPrompt,
  text,
  tokenList,
  unsupported,
} from "../../server/openai/fields.ts";
import type { Job } from "../../server/openai/job.ts";
import { metaInfoJson } from "../../server/openai/meta-info.ts";
import { originOf, VERSION_FIELD } from "../../server/openai/origin.ts";
import type { Output } from "../../server/openai/output.ts";
import type { Answer, DataPlane, Prepared } from "../../server/openai/plane.ts";
import {
  type Drawing,
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "../../server/openai/sampling-fields.ts";
import type { Exchange } from "../../server/route.ts";

/** SGLang's. */
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
  ignore_eos: flag,
  skip_special_tokens: flag,
  spaces_between_special_tokens: flag,
  /** What ended the response stays in the text. */
  no_stop_trim: flag,
  /** For a custom_logit_processor, which is refused: without one they change nothing but what is read here. */
  custom_params: v.nullish(fieldsOfAnyKind),
  stop_regex: unsupported("stop takes texts"),
  json_schema: v.nullish(text),
  regex: v.nullish(text),
  ebnf: v.nullish(text),
  structural_tag: v.nullish(text),
  stream_interval: ignored,
});

const yes = v.nullish(v.boolean(isNot("true or false")));
const SCORES = "prompt_logprobs at /v1/completions of a vLLM worker takes its place";

export const sglangRequest = v.strictObject({
  input_ids: v.nullish(v.union([tokenList, v.array(tokenList)], isNot("a list of token ids"))),
  text: v.nullish(v.union([text, v.array(text)], isNot("a text or a list of texts"))),
  sampling_params: perPrompt(samplingParams),
  return_logprob: perPrompt(yes),
  top_logprobs_num: perPrompt(TOP_LOGPROBS_FIELD),
  /** -1: of the output alone. */
  logprob_start_len: perPrompt(unsupported(SCORES, -1)),
  return_text_in_logprobs: flag,
  rid: perPrompt(name),
  group_id: name,
  session_id: name,
  policy_version: VERSION_FIELD,
  weight_version: VERSION_FIELD,
  priority: integer(-(2 ** 31), 2 ** 31 - 1),
  stream: flag,
  return_hidden_states: unsupported("no worker returns them", false),
  /** Of each token but the last one the experts of all layers: 32-bit numbers in base64. */
  return_routed_experts: flag,
  routed_experts_start_len: integer(0, TOKENS_MAX),
  /** miles names it in every request. */
  return_indexer_topk: unsupported("no worker reports it", false),
  return_entropy: unsupported("no worker reports it", false),
  return_prompt_token_ids: unsupported("the client has them", false),
  token_ids_logprob: unsupported("top_logprobs_num takes its place"),
  input_embeds: unsupported(PROMPTS),
  image_data: unsupported(PROMPTS),
  video_data: unsupported(PROMPTS),
  audio_data: unsupported(PROMPTS),
  /** An adapter's name. */
  lora_path: perPrompt(name),
  /** As vLLM's cache_salt, which it has too. */
  extra_key: perPrompt(name),
  cache_salt: perPrompt(name),
  session_params: unsupported("send the whole prompt"),
  custom_logit_processor: unsupported("no code is run for clients"),
  background: unsupported("an answer is not kept for later", false),
  bootstrap_host: unsupported(SPLIT),
  bootstrap_port: unsupported(SPLIT),
  bootstrap_room: unsupported(SPLIT),
  model: v.nullish(text),
  log_metrics: ignored,
  no_logs: ignored,
  routing_key: ignored,
  // The sidecar chooses the engine and its rank itself.
  data_parallel_rank: ignored,
  routed_dp_rank: ignored,
  external_trace_header: ignored,
  modalities: ignored,
  require_reasoning: unsupported("structured outputs begin with the response", false),
  conversation_id: ignored,
  custom_labels: ignored,
  return_bytes: ignored,
});

type Fields = v.InferOutput<typeof sglangRequest>;

export async function prepareSglang(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const fields = checked(sglangRequest, body);
  const { prompts, isBatch } = await promptsOf(fields, plane, exchange);
  const items = itemsOf(fields, prompts.length);
  const drawings = items.map((item) => drawingOfItem(plane, fields, item));
  const samples = drawings[0]?.n ?? 1;
  if (drawings.some(({ n }) => n !== samples)) {
    throw invalid("sampling_params", "holds different n: SGLang takes one for all prompts");
  }
  const specs = prompts.flatMap((prompt, index) => {
    const item = present(items[index], "there is one for each prompt");
    const drawing = present(drawings[index], "there is one for each prompt");
    const extraArgs = { ...item.params.custom_params };
    const { session_id, group_id, policy_version, weight_version } = fields;
    const named = { session_id, group_id, policy_version, weight_version, cache_salt: item.salt };
    const model = item.adapter ?? fields.model;
    plane.checkModel(model);
    return plane.specsOf([prompt], drawing, {
      tokensMax: item.tokensMax,
      clamps: false,
      origin: originOf(exchange.headers, named, extraArgs),
      priority: fields.priority ?? 0,
      model,
    });
  });
  checkCount(plane, specs);
  const { rid } = fields;
  const first = present(drawings[0], "a request has a prompt");
  return {
    specs,
    stops: first.stops,
    ...(drawings.length > 1 ? { stopsOf: drawings.map(({ stops }) => stops) } : {}),
    ...(Array.isArray(rid) ? { names: rid.map((one) => one ?? "") } : {}),
    wantsText: true,
    isStream: fields.stream ?? false,
    requestId: typeof rid === "string" ? rid : null,
    answer: new SglangAnswer(plane, fields, { items, isList: isBatch || samples > 1, samples }),
  };
}

/** What may differ from prompt to prompt. */
interface Item {
  readonly params: v.InferOutput<typeof samplingParams>;
  readonly tokensMax: number;
  readonly returnsLogprobs: boolean;
  readonly top: number;
  /** Most tokens that can be drawn at a position, all of which are reported; 0: they are not. */
  readonly support: number;
  readonly adapter: string | null;
  readonly salt: string | null;
}

/** @throws InvalidFieldError: a list has not one entry for each prompt, or a name comes twice. */
function itemsOf(fields: Fields, count: number): Item[] {
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
  return Array.from({ length: count }, (_, index): Item => {
    at("rid", fields.rid, index);
    at("logprob_start_len", fields.logprob_start_len, index);
    const params = at("sampling_params", fields.sampling_params, index) ?? {};
    const returnsLogprobs = at("return_logprob", fields.return_logprob, index) ?? false;
    const salt = at("extra_key", fields.extra_key, index);
    const otherSalt = at("cache_salt", fields.cache_salt, index);
    return {
      params,
      tokensMax: params.max_new_tokens ?? TOKENS_MAX_DEFAULT,
      returnsLogprobs,
      top: returnsLogprobs ? (at("top_logprobs_num", fields.top_logprobs_num, index) ?? 0) : 0,
      support: supportWidth(params),
      adapter: at("lora_path", fields.lora_path, index),
      salt: salt !== null && otherSalt !== null ? `${salt} ${otherSalt}` : (salt ?? otherSalt),
    };
  });
}

/** slime's patched SGLang reports the tokens that top_p left. Here that takes a top_k which engines report alternatives for. */
function supportWidth({ custom_params, top_k, temperature }: Item["params"]): number {
  if (custom_params?.return_top_p_token_ids !== true) return 0;
  if (temperature === 0) return 1;
  const width = top_k ?? 0;
  return width >= 1 && width <= TOP_LOGPROBS.max ? width : 0;
}

function drawingOfItem(
  plane: DataPlane,
  fields: Fields,
  { params, top, support, tokensMax }: Item,
): Drawing {
  const { return_routed_experts: experts, routed_experts_start_len: start } = fields;
  return drawingOf(
    {
      ...params,
      seed: params.sampling_seed,
      min_tokens: params.min_new_tokens,
      include_stop_str_in_output: params.no_stop_trim,
      structured_outputs: structureOf(params),
      return_routed_experts: experts ?? false,
      ...(experts === true ? { routed_experts_prompt_start: start } : {}),
    },
    { topLogprobs: Math.max(top, support), tokensMax, extraArgs: {} },
    plane.samplingContext("sampling_params."),
  );
}

/** SGLang's names of vLLM's kinds of structured output. */
const STRUCTURES = [
  ["json_schema", "json"],
  ["regex", "regex"],
  ["ebnf", "grammar"],
  ["structural_tag", "structural_tag"],
] as const;

/** null: free text. @throws InvalidFieldError: as in SGLang there is one at most. */
function structureOf(params: Item["params"]): Record<string, unknown> | null {
  const [first, second] = STRUCTURES.filter(([name]) => (params[name] ?? null) !== null);
  if (first === undefined) return null;
  if (second !== undefined) {
    throw invalid(`sampling_params.${second[0]}`, `and ${first[0]} are both set`);
  }
  const [name, kind] = first;
  return { [kind]: params[name] };
}

function checkCount(plane: DataPlane, specs: Prepared["specs"]): void {
  const { responsesMax } = plane.limits;
  const count = specs.reduce((sum, { n }) => sum + n, 0);
  if (count <= responsesMax) return;
  throw invalid(
    "input_ids",
    `asks for ${count} responses, more than ${responsesMax} in one request`,
  );
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
  readonly #items: readonly Item[];
  /** Responses to a prompt. */
  readonly #samples: number;
  readonly #rid: Fields["rid"];
  readonly #writesTokens: boolean;
  readonly #returnsExperts: boolean;

  constructor(
    plane: DataPlane,
    fields: Fields,
    about: { items: readonly Item[]; isList: boolean; samples: number },
  ) {
    this.#plane = plane;
    this.#isList = about.isList;
    this.#items = about.items;
    this.#samples = about.samples;
    this.#rid = fields.rid;
    this.#writesTokens = fields.return_text_in_logprobs ?? false;
    this.#returnsExperts = fields.return_routed_experts ?? false;
  }

  whole(job: Job): string {
    const parts = job.outputs.map((output) => this.#one(job, output));
    return this.#isList ? `[${parts.join(",")}]` : (parts[0] ?? "null");
  }

  /** Each event holds all of a response so far, as SGLang's do without --incremental-streaming-output. */
  stream(job: Job): StreamView {
    return {
      head: () => "",
      delta: (output, cursor) => {
        if (advanced(output, cursor, true) === null) return "";
        return `data: ${this.#one(job, output)}\n\n`;
      },
      tail: () => "",
    };
  }

  #one(job: Job, output: Output): string {
    const span = spanOf(output, 0);
    const ids = span === null ? "" : span.response.tokens().subarray(0, span.to).join(",");
    const item = this.#items[Math.floor(output.index / this.#samples)];
    const meta = metaInfoJson(output, {
      id: this.#idOf(job, output.index),
      plane: this.#plane,
      returnsLogprobs: item?.returnsLogprobs ?? false,
      top: item?.top ?? 0,
      writesTokens: this.#writesTokens,
      support: item?.support ?? 0,
      returnsExperts: this.#returnsExperts,
    });
    const index = this.#isList ? `,"index":${output.index}` : "";
    return `{"text":${JSON.stringify(output.pieces.join(""))},"output_ids":[${ids}],"meta_info":${meta}${index}}`;
  }

  #idOf(job: Job, index: number): string {
    if (!this.#isList) return job.id;
    if (!Array.isArray(this.#rid)) return `${job.id}_${index}`;
    const name = this.#rid[Math.floor(index / this.#samples)] ?? job.id;
    return this.#samples === 1 ? name : `${name}_${index % this.#samples}`;
  }
}
