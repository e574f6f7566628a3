// POST /inference/v1/generate, token ids in and out: its schema and its answers, field by field as vLLM 0.32
// writes them (vllm/entrypoints/scale_out/token_in_token_out/protocol.py).

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { invalid } from "../route.ts";
import { type Answer, answerBy, idsOf, promptIds } from "./answer.ts";
import * as f from "./fields.ts";
import type { Job } from "./job.ts";
import * as json from "./json.ts";
import type { ParsedRequest } from "./plan.ts";
import {
  COMMON_ENTRIES,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
  usageWanted,
} from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";

const samplingParams = v.strictObject({
  ...SAMPLING_ENTRIES,
  max_tokens: MAX_TOKENS_FIELD,
  logprobs: TOP_LOGPROBS_FIELD,
  detokenize: f.flag,
  extra_args: v.nullish(f.fieldsOfAnyKind),
  /** 0 cumulative, 1 delta, 2 final only: streams carry deltas and answers are final, as in vLLM. */
  output_kind: f.integer(0, 2),
  ...f.ignoring("stream_interval", "reasoning_effort"),
  trace_decode_token_ids: f.unsupported("responses are drawn, not replayed"),
  // Ways in which vLLM holds a request in its own memory.
  ...f.ignoring("flat_logprobs", "output_text_buffer_length"),
  ...f.ignoring("skip_clone", "skip_reading_prefix_cache"),
  /** Reports prompt logprobs of these tokens too, from position `prompt_logprob_start` + 1 on. */
  prompt_logprob_token_ids: v.nullish(f.listOf(f.tokenList, TOKENS_MAX)),
  prompt_logprob_start: f.integer(0, TOKENS_MAX),
});

export const generateRequest = v.strictObject({
  ...COMMON_ENTRIES,
  token_ids: f.tokenList,
  sampling_params: samplingParams,
  output_mode: f.oneOf("tokens", "text"),
  return_token_ids: f.flag,
  ...f.refusing("prompts are tokens of text", "features", "content_parts"),
  return_token_logprobs: f.unsupported("logprobs come with the tokens", false),
  return_top_k_logprobs: f.unsupported("logprobs come with the tokens", false),
  // They describe the prompt's text and masks for training; nothing is drawn differently.
  ...f.ignoring("token_offsets", "assistant_tokens_mask"),
  // They say where a structure begins, and change nothing without one.
  reasoning_ended: f.flag,
  reasoning_parser_kwargs: v.nullish(f.fieldsOfAnyKind),
  // vLLM ignores the effort here; the renderers package sends it.
  ...f.ignoring("reasoning_effort"),
});

type Fields = v.InferOutput<typeof generateRequest>;

export function parseGenerate(fields: Fields): ParsedRequest {
  const { sampling_params: params } = fields;
  const { prompt_logprob_token_ids, prompt_logprob_start } = params;
  const wantsText = fields.output_mode === "text";
  const hasStop = [params.stop ?? []].flat().length > 0;
  if (params.detokenize === false && (wantsText || hasStop)) {
    const problem = "is false, but stop strings and output_mode text need the text";
    throw invalid("sampling_params.detokenize", problem);
  }
  const { reasoning_ended, reasoning_parser_kwargs } = fields;
  const hasStructure = (params.structured_outputs ?? null) !== null;
  const structure = hasStructure ? { reasoning_ended, reasoning_parser_kwargs } : {};
  const part = {
    params,
    at: "sampling_params.",
    topLogprobs: json.alternativesFor(params.logprobs ?? 0),
    tokensMax: params.max_tokens ?? null,
    extraArgs: params.extra_args ?? {},
    beside: { prompt_logprob_token_ids, prompt_logprob_start, ...structure },
    // Here vLLM silently truncates to the context.
    clamps: true,
  };
  return {
    fields,
    parts: [part],
    wantsText,
    prompts: { kind: "tokens", lists: [fields.token_ids], names: () => "token_ids" },
    answer: (model) => answerOf(model, fields),
  };
}

function answerOf(model: ServedModel, fields: Fields): Answer {
  const top = fields.sampling_params.logprobs ?? null;
  const mode = fields.output_mode ?? "tokens";
  const named = JSON.stringify(model.answeredName(fields.model));
  const usage = usageWanted(fields);
  const logprobsOf = (span: json.TokenSpan | null) => {
    if (top === null) return "null";
    if (span === null) return `{"content":[]}`;
    if (mode === "text") return json.chatLogprobs(span, model.writtenNames, top);
    return json.generateLogprobs(span, Math.max(1, top));
  };
  const promptOf = ({ outputs: [first] }: Job) =>
    fields.return_token_ids === true && first !== undefined ? promptIds(first) : "null";
  return answerBy({
    model,
    usage,
    showsTokens: true,
    opening({ id, created }, isStream) {
      const request = `"request_id":${JSON.stringify(`generate-tokens-${id}`)},"output_mode":"${mode}"`;
      return isStream ? request : `${request},"model":${named},"created":${created}`;
    },
    choice({ span, text, isWhole }) {
      const written = mode === "text" ? `"text":${JSON.stringify(text)},` : "";
      const mask = isWhole ? `,"sampling_mask":null` : "";
      return `${written}"logprobs":${logprobsOf(span)},"token_ids":${idsOf(span)}${mask}`;
    },
    closing(job) {
      const report = job.outputs[0]?.promptReport;
      const fields = [
        `"prompt_logprobs":${json.reportJson(report?.logprobs)}`,
        `"prompt_token_id_logprobs":${json.reportJson(report?.tokenIdLogprobs)}`,
        `"prompt_token_ids":${promptOf(job)}`,
        `"metrics":null`,
        `"kv_transfer_params":null`,
        `"ec_transfer_params":null`,
      ];
      return fields.join(",");
    },
    beside(job, isFirst) {
      const counts = usage.always ? "" : `,"usage":null`;
      const isTold = isFirst && fields.return_token_ids === true;
      return isTold ? `${counts},"prompt_token_ids":${promptOf(job)}` : counts;
    },
  });
}
