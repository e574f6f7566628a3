// POST /inference/v1/generate, token ids in and out: its schema and its answers, field by field as vLLM 0.32
// writes them (vllm/entrypoints/scale_out/token_in_token_out/protocol.py).

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import type { Exchange } from "../route.ts";
import { COMMON_ENTRIES, type Usage, usageWanted } from "./common-fields.ts";
import { advanced, endOf, expertsAtEnd, idsOf, NO_END, spanOf } from "./completions.ts";
import type { StreamView } from "./event-stream.ts";
import {
  checked,
  fieldsOfAnyKind,
  flag,
  ignored,
  integer,
  listOf,
  oneOf,
  tokenList,
  unsupported,
} from "./fields.ts";
import type { Job } from "./job.ts";
import {
  alternativesFor,
  chatLogprobs,
  expertsJson,
  generateLogprobs,
  promptLogprobsJson,
  tokenIdLogprobsJson,
  tokensJson,
  usageJson,
  usageOf,
} from "./json.ts";
import { originOf } from "./origin.ts";
import type { Cursor, Output } from "./output.ts";
import type { Answer, DataPlane, Prepared } from "./plane.ts";
import {
  checkPromptReport,
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "./sampling-fields.ts";

const PROMPTS = "prompts are tokens of text";

const samplingParams = v.strictObject({
  ...SAMPLING_ENTRIES,
  max_tokens: MAX_TOKENS_FIELD,
  logprobs: TOP_LOGPROBS_FIELD,
  detokenize: flag,
  extra_args: v.nullish(fieldsOfAnyKind),
  /** 0 cumulative, 1 delta, 2 final only: streams carry deltas and answers are final, as in vLLM. */
  output_kind: integer(0, 2),
  stream_interval: ignored,
  // How vLLM holds a request in its own memory.
  flat_logprobs: ignored,
  output_text_buffer_length: ignored,
  skip_clone: ignored,
  skip_reading_prefix_cache: ignored,
  /** Of these tokens, one row a position from `prompt_logprob_start` + 1 on, beside those of prompt_logprobs. */
  prompt_logprob_token_ids: v.nullish(listOf(tokenList, TOKENS_MAX)),
  prompt_logprob_start: integer(0, TOKENS_MAX),
  reasoning_effort: ignored,
  trace_decode_token_ids: ignored,
});

export const generateRequest = v.strictObject({
  ...COMMON_ENTRIES,
  token_ids: tokenList,
  sampling_params: samplingParams,
  output_mode: oneOf("tokens", "text"),
  return_token_ids: flag,
  features: unsupported(PROMPTS),
  content_parts: unsupported(PROMPTS),
  return_token_logprobs: unsupported("logprobs come with the tokens", false),
  return_top_k_logprobs: unsupported("logprobs come with the tokens", false),
  // Describe the prompt's text and masks for training; nothing is drawn differently.
  token_offsets: ignored,
  assistant_tokens_mask: ignored,
  reasoning_ended: ignored,
  reasoning_parser_kwargs: ignored,
  // vLLM ignores it here; the renderers package sends it.
  reasoning_effort: ignored,
});

type Fields = v.InferOutput<typeof generateRequest>;

export function prepareGenerate(plane: DataPlane, exchange: Exchange, body: unknown): Prepared {
  const fields = checked(generateRequest, body);
  plane.checkModel(fields.model);
  const params = fields.sampling_params;
  const tokensMax = params.max_tokens ?? null;
  const extraArgs = { ...params.extra_args };
  const origin = originOf(exchange.headers, fields, extraArgs);
  checkPromptReport(fields.stream, params, "sampling_params.");
  const topLogprobs = alternativesFor(params.logprobs ?? 0);
  const { prompt_logprob_token_ids, prompt_logprob_start } = params;
  const beside = { prompt_logprob_token_ids, prompt_logprob_start };
  const own = { topLogprobs, tokensMax, extraArgs, beside };
  const drawing = drawingOf(params, own, plane.samplingContext("sampling_params."));
  const isText = fields.output_mode === "text";
  if (params.detokenize === false && (isText || drawing.stops.strings.length > 0)) {
    const problem = "is false, but stop strings and output_mode text need the text";
    throw invalid("sampling_params.detokenize", problem);
  }
  const prompt = plane.promptOf(fields.token_ids, "token_ids");
  // Here vLLM silently truncates to the context.
  const about = {
    tokensMax,
    clamps: true,
    origin,
    priority: fields.priority ?? 0,
    model: fields.model,
  };
  return {
    specs: plane.specsOf([prompt], drawing, about),
    stops: drawing.stops,
    wantsText: isText,
    isStream: fields.stream ?? false,
    requestId: fields.request_id ?? null,
    answer: new GenerateAnswer(plane, fields, usageWanted(fields)),
  };
}

class GenerateAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #model: string;
  readonly #usage: Usage;
  readonly #top: number | null;
  readonly #mode: "tokens" | "text";
  readonly #returnsPrompt: boolean;

  constructor(plane: DataPlane, fields: Fields, usage: Usage) {
    this.#plane = plane;
    this.#model = plane.answeredName(fields.model);
    this.#usage = usage;
    this.#top = fields.sampling_params.logprobs ?? null;
    this.#mode = fields.output_mode ?? "tokens";
    this.#returnsPrompt = fields.return_token_ids ?? false;
  }

  whole(job: Job): string {
    const choices = job.outputs.map((output) => {
      const written = this.#textField(output.pieces.join(""));
      return `{"index":${output.index},${written}"logprobs":${this.#logprobs(spanOf(output, 0))},${endOf(output, this.#plane)},"token_ids":${idsOf(output, 0)},"routed_experts":${expertsJson(output.response)},"sampling_mask":null}`;
    });
    const usage = usageOf(job);
    const model = JSON.stringify(this.#model);
    const [first] = job.outputs;
    const report = first === undefined ? null : job.promptReportOf(first);
    return `{${this.#opening(job)},"model":${model},"created":${job.created},"choices":[${choices.join(",")}],"usage":${usage},"prompt_logprobs":${promptLogprobsJson(report)},"prompt_token_id_logprobs":${tokenIdLogprobsJson(report)},"prompt_token_ids":${this.#promptJson(job)},"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null}`;
  }

  stream(job: Job): StreamView {
    const opening = `data: {${this.#opening(job)},"choices":[`;
    let isFirst = true;
    return {
      head: () => "",
      delta: (output, cursor) => {
        const prompt = isFirst && this.#returnsPrompt ? this.#promptJson(job) : null;
        const written = this.#delta(opening, { output, cursor, prompt });
        if (written !== "") isFirst = false;
        return written;
      },
      tail: () => {
        if (!this.#usage.atEnd) return "";
        return `${opening}],"usage":${usageOf(job)}}\n\n`;
      },
    };
  }

  #opening(job: Job): string {
    const id = JSON.stringify(`generate-tokens-${job.id}`);
    return `"request_id":${id},"output_mode":"${this.#mode}"`;
  }

  #promptJson(job: Job): string {
    return this.#returnsPrompt ? `[${job.plan.specs[0]?.prompt.join(",") ?? ""}]` : "null";
  }

  #textField(written: string): string {
    return this.#mode === "text" ? `"text":${JSON.stringify(written)},` : "";
  }

  #delta(
    opening: string,
    about: { output: Output; cursor: Cursor; prompt: string | null },
  ): string {
    const { output, cursor, prompt } = about;
    const news = advanced(output, cursor, true);
    if (news === null) return "";
    const { span, piece } = news;
    const ids = span === null ? "[]" : tokensJson(span);
    const end = cursor.isOver ? endOf(output, this.#plane) : NO_END;
    const usage = this.#usage.always ? usageJson(output.prompt.length, cursor.tokens) : "null";
    const beside = prompt === null ? "" : `,"prompt_token_ids":${prompt}`;
    return `${opening}{"index":${output.index},${this.#textField(piece)}"logprobs":${this.#logprobs(span)},${end},"token_ids":${ids}${expertsAtEnd(output, cursor)}}],"usage":${usage}${beside}}\n\n`;
  }

  #logprobs(span: ReturnType<typeof spanOf>): string {
    if (this.#top === null) return "null";
    if (span === null) return `{"content":[]}`;
    if (this.#mode === "text") return chatLogprobs(span, this.#plane.writtenNames, this.#top);
    return generateLogprobs(span, Math.max(1, this.#top));
  }
}
