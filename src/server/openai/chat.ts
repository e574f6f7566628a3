// POST /v1/chat/completions and its two relatives: /tokens takes the prompt as tokens beside the messages
// (prime-rl), /render answers with the request to /inference/v1/generate that the chat amounts to.

import * as v from "valibot";
import { present } from "../../core/base/assert.ts";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import type { EncodedChat, EncodeOptions } from "../../text/text.ts";
import type { Exchange } from "../route.ts";
import { ChatAnswer } from "./chat-answer.ts";
import {
  COMMON_ENTRIES,
  OPENAI_ENTRIES,
  truncated,
  usageWanted,
  withFormat,
} from "./common-fields.ts";
import {
  checked,
  fieldsOfAnyKind,
  flag,
  integer,
  isNot,
  name,
  type TokenList,
  text,
  tokenList,
  unsupported,
} from "./fields.ts";
import { alternativesFor } from "./json.ts";
import { chatOf, messageList, TEMPLATE_ENTRIES, type TemplateFields } from "./messages.ts";
import { originOf } from "./origin.ts";
import type { DataPlane, Prepared } from "./plane.ts";
import {
  checkPromptReport,
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "./sampling-fields.ts";
import {
  chatForEngine,
  parseTools,
  type RenderedTools,
  renderTools,
  wantsTools,
} from "./tool-calls.ts";

const CHAT_ENTRIES = {
  ...SAMPLING_ENTRIES,
  ...COMMON_ENTRIES,
  ...OPENAI_ENTRIES,
  ...TEMPLATE_ENTRIES,
  messages: messageList,
  max_completion_tokens: MAX_TOKENS_FIELD,
  logprobs: flag,
  top_logprobs: TOP_LOGPROBS_FIELD,
  tool_choice: v.nullish(v.union([text, fieldsOfAnyKind], isNot("a text or an object"))),
  return_prompt_text: flag,
  echo: unsupported("only the new message is answered", false),
  // They mean something to an engine's parser alone.
  parallel_tool_calls: flag,
  include_reasoning: flag,
  modalities: unsupported("answers are text"),
  audio: unsupported("answers are text"),
  functions: unsupported("tools takes its place"),
  function_call: unsupported("tool_choice takes its place"),
  // SGLang's, as miles' server of sessions sends them: the prompt as tokens beside the messages, and `meta_info`.
  input_ids: v.nullish(tokenList),
  return_meta_info: flag,
  no_stop_trim: flag,
  lora_path: name,
  routed_experts_start_len: integer(0, TOKENS_MAX),
  return_indexer_topk: unsupported("no worker reports it", false),
} as const;

export const chatRequest = v.strictObject(CHAT_ENTRIES);
export const chatTokensRequest = v.strictObject({ ...CHAT_ENTRIES, tokens: tokenList });

type Fields = v.InferOutput<typeof chatRequest>;

interface ChatPlan {
  readonly prepared: Prepared;
  readonly fields: Fields;
  readonly prompt: Int32Array;
}

export async function prepareChat(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  return (await planGiven(plane, exchange, checked(chatRequest, body))).prepared;
}

export async function prepareChatTokens(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const { tokens, ...fields } = checked(chatTokensRequest, body);
  const prompt = promptGiven(plane, fields, { tokens, at: "tokens" });
  return (await planChat(plane, exchange, fields, prompt)).prepared;
}

/** What /inference/v1/generate would have to be sent. */
export async function renderChatRequest(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<object> {
  const given = checked(chatRequest, body);
  const { prepared, fields, prompt } = await planGiven(plane, exchange, given);
  const params: Record<string, unknown> = {};
  for (const name of Object.keys(SAMPLING_ENTRIES) as (keyof typeof SAMPLING_ENTRIES)[]) {
    if (fields[name] !== undefined && fields[name] !== null) params[name] = fields[name];
  }
  params.max_tokens = prepared.specs[0]?.sampling.tokensMax;
  if (fields.logprobs === true) params.logprobs = fields.top_logprobs ?? 0;
  if (fields.vllm_xargs !== undefined && fields.vllm_xargs !== null) {
    params.extra_args = fields.vllm_xargs;
  }
  return {
    request_id: `chatcmpl-${fields.request_id ?? crypto.randomUUID().replaceAll("-", "")}`,
    token_ids: [...prompt],
    features: null,
    sampling_params: params,
    model: fields.model ?? plane.modelName,
    stream: fields.stream ?? false,
    stream_options: fields.stream_options ?? null,
    cache_salt: fields.cache_salt ?? null,
    priority: fields.priority ?? 0,
    kv_transfer_params: null,
  };
}

/** The prompt that messages make, as text and as tokens. @throws InvalidFieldError; AppError as Encoder.encodeChat. */
export async function encodeMessages(
  plane: DataPlane,
  fields: TemplateFields,
  encoding: EncodeOptions,
): Promise<EncodedChat> {
  const { messages, options } = chatOf(fields);
  return await plane.encoder.encodeChat(messages, options, encoding);
}

async function planGiven(plane: DataPlane, exchange: Exchange, fields: Fields): Promise<ChatPlan> {
  const tokens = fields.input_ids ?? null;
  const prompt = tokens === null ? null : promptGiven(plane, fields, { tokens, at: "input_ids" });
  return await planChat(plane, exchange, fields, prompt);
}

function promptGiven(
  plane: DataPlane,
  fields: Fields,
  { tokens, at }: { tokens: TokenList; at: string },
): Int32Array {
  const truncates = (fields.truncate_prompt_tokens ?? null) !== null;
  return plane.promptOf(tokens, at, truncates ? null : plane.contextTokens);
}

/** What vLLM has too, under SGLang's names. */
function fromSglang(fields: Fields): Fields {
  const { no_stop_trim: keeps, lora_path: adapter, routed_experts_start_len: start } = fields;
  return {
    ...fields,
    model: adapter ?? fields.model,
    include_stop_str_in_output: fields.include_stop_str_in_output ?? keeps,
    routed_experts_prompt_start: fields.routed_experts_prompt_start ?? start,
  };
}

/** `tokens`: of the prompt, where the client gave them; null: the messages make it. */
async function planChat(
  plane: DataPlane,
  exchange: Exchange,
  asked: Fields,
  tokens: Int32Array | null,
): Promise<ChatPlan> {
  const given = fromSglang(asked);
  plane.checkModel(given.model);
  if (given.return_meta_info === true && given.stream === true) {
    throw invalid("return_meta_info", "is true, but a stream has no meta_info");
  }
  if (typeof given.top_logprobs === "number" && given.top_logprobs > 0 && !given.logprobs) {
    throw invalid("top_logprobs", `is ${given.top_logprobs}, but logprobs is not true`);
  }
  checkPromptReport(given.stream, given);
  const tokensMax = given.max_completion_tokens ?? given.max_tokens ?? null;
  const formatted = withFormat(given);
  const chat = wantsTools(given) ? chatForEngine(formatted, tokensMax) : null;
  const tooled = chat === null ? null : await renderTools(plane.engines, chat, exchange.signal);
  const fields = tooled === null ? formatted : withTools(formatted, tooled);
  const extraArgs = { ...fields.vllm_xargs };
  const origin = originOf(exchange.headers, fields, extraArgs);
  const topLogprobs = alternativesFor(fields.top_logprobs ?? 0);
  const own = { topLogprobs, tokensMax, extraArgs, beside: tooled?.beside ?? {} };
  const drawing = drawingOf(fields, own, plane.samplingContext(""));
  const { truncate_prompt_tokens: keep, truncation_side: side } = fields;
  const addSpecial = fields.add_special_tokens ?? false;
  const encoding = plane.encoding(exchange, { addSpecial, truncates: (keep ?? null) !== null });
  const isRendered = tokens !== null || tooled !== null;
  const written = isRendered ? null : await encodeMessages(plane, fields, encoding);
  const made = tooled === null ? written?.tokens : plane.promptOf(tooled.tokens, "messages");
  const whole = tokens ?? made ?? new Int32Array(0);
  const room = (plane.contextTokens ?? 0) - (tokensMax ?? 0);
  const prompt = Int32Array.from(truncated(whole, { keep, side, room }));
  if (prompt.length === 0) throw invalid("messages", "make a prompt without tokens");
  const about = {
    tokensMax,
    clamps: false,
    origin,
    priority: fields.priority ?? 0,
    model: fields.model,
  };
  const prepared = {
    specs: plane.specsOf([prompt], drawing, about),
    stops: drawing.stops,
    wantsText: true,
    isStream: fields.stream ?? false,
    requestId: fields.request_id ?? null,
    answer: new ChatAnswer(plane, fields, {
      usage: usageWanted(fields),
      promptText: written?.text ?? null,
    }),
    parse: chat === null ? null : parserOf(plane, chat),
  };
  return { prepared, fields, prompt };
}

function withTools(fields: Fields, { structured, stopTokenIds }: RenderedTools): Fields {
  const stops = [...(fields.stop_token_ids ?? []), ...stopTokenIds];
  return {
    ...fields,
    stop_token_ids: [...new Set(stops)],
    ...(structured === null ? {} : { structured_outputs: structured }),
  };
}

function parserOf(
  plane: DataPlane,
  chat: Readonly<Record<string, unknown>>,
): NonNullable<Prepared["parse"]> {
  const engines = present(plane.engines, "an engine has rendered the chat");
  return async (output) => await parseTools(engines, output, chat);
}
