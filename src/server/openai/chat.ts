// POST /v1/chat/completions and its two relatives: /tokens takes the prompt as tokens beside the messages
// (prime-rl), /render answers with the request to /inference/v1/generate that the chat amounts to.

import { present } from "../../core/base/assert.ts";
import type { Chat, EncodeOptions } from "../../text/text.ts";
import { type Exchange, invalid } from "../route.ts";
import { chatAnswer } from "./chat-answer.ts";
import { type ChatFields, chatRequest, chatTokensRequest } from "./chat-fields.ts";
import { truncated, withFormat } from "./common-fields.ts";
import * as f from "./fields.ts";
import * as json from "./json.ts";
import { chatOf } from "./messages.ts";
import type { DataPlane, Prepared } from "./plane.ts";
import { SAMPLING_ENTRIES } from "./sampling-fields.ts";
import {
  answeringTool,
  type Constraints,
  constraintsOf,
  parseTools,
  wantsTools,
} from "./tool-calls.ts";

type Fields = ChatFields;

/** `source`: the body's JSON, if it is not the client's own. */
export async function prepareChat(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
  source?: string,
): Promise<Prepared> {
  const fields = f.checked(chatRequest, body);
  const given = { tokens: fields.input_ids, at: "input_ids", source };
  return (await planChat(plane, exchange, fields, given)).prepared;
}

export async function prepareChatTokens(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const { tokens, ...fields } = f.checked(chatTokensRequest, body);
  return (await planChat(plane, exchange, fields, { tokens, at: "tokens" })).prepared;
}

/** The equivalent body for /inference/v1/generate. */
export async function renderChatRequest(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<object> {
  const given = f.checked(chatRequest, body);
  const { prepared, fields } = await planChat(plane, exchange, given, {
    tokens: given.input_ids,
    at: "input_ids",
  });
  const [spec] = prepared.specs;
  const params: Record<string, unknown> = {};
  for (const name of Object.keys(SAMPLING_ENTRIES) as (keyof typeof SAMPLING_ENTRIES)[]) {
    if (fields[name] !== undefined && fields[name] !== null) params[name] = fields[name];
  }
  params.max_tokens = spec?.sampling.tokensMax;
  if (fields.logprobs === true) params.logprobs = fields.top_logprobs ?? 0;
  if (fields.vllm_xargs !== undefined && fields.vllm_xargs !== null) {
    params.extra_args = fields.vllm_xargs;
  }
  return {
    request_id: `chatcmpl-${fields.request_id ?? crypto.randomUUID().replaceAll("-", "")}`,
    token_ids: [...(spec?.prompt ?? [])],
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

/** Maps SGLang's names of fields that vLLM has too. */
function fromSglang(fields: Fields): Fields {
  const { no_stop_trim: keeps, lora_path: adapter, routed_experts_start_len: start } = fields;
  return {
    ...fields,
    model: adapter ?? fields.model,
    include_stop_str_in_output: fields.include_stop_str_in_output ?? keeps,
    routed_experts_prompt_start: fields.routed_experts_prompt_start ?? start,
  };
}

/** The client gave `tokens` of the prompt in the field `at`, or else the messages make it. */
async function planChat(
  plane: DataPlane,
  exchange: Exchange,
  asked: Fields,
  prompt: { tokens: f.TokenList | null | undefined; at: string; source?: string | undefined },
): Promise<{ prepared: Prepared; fields: Fields }> {
  const { tokens, at } = prompt;
  const given = fromSglang(asked);
  plane.checkModel(given.model);
  if (given.return_meta_info === true && given.stream === true) {
    throw invalid("return_meta_info", "is true, but a stream has no meta_info");
  }
  if (typeof given.top_logprobs === "number" && given.top_logprobs > 0 && !given.logprobs) {
    throw invalid("top_logprobs", `is ${given.top_logprobs}, but logprobs is not true`);
  }
  const tokensMax = given.max_completion_tokens ?? given.max_tokens ?? null;
  const formatted = withFormat(given);
  const isParsed = wantsTools(given);
  const { truncate_prompt_tokens: keep = null, truncation_side: side } = formatted;
  const addSpecial = formatted.add_special_tokens ?? false;
  const encoding = plane.encoding(exchange, { addSpecial, truncates: keep !== null });
  const source = prompt.source ?? (await exchange.source());
  const chat = tokens && !isParsed ? null : chatOf(formatted, { source, tokensMax, isParsed });
  // What the engine asks of the response is checked with the rest.
  const early = chat === null || !isParsed ? null : await plane.chats.render(chat, encoding);
  const tooled = early === null ? null : constraintsOf(early.reply, formatted.tool_choice);
  const fields = tooled === null ? formatted : withTools(formatted, tooled);
  const request = plane.begin(exchange, fields, {
    params: fields,
    topLogprobs: json.alternativesFor(fields.top_logprobs ?? 0),
    tokensMax,
    extraArgs: { ...fields.vllm_xargs },
    tool: answeringTool(fields.messages),
    beside: tooled?.beside ?? {},
  });
  const written =
    tokens || chat === null ? null : (early ?? (await plane.chats.render(chat, encoding)));
  const whole =
    written === null ? plane.promptOf(tokens ?? [], at, encoding.tokensMax) : written.tokens;
  const textOf = async () => written?.text ?? (await plane.encoder.decode(whole, exchange.signal));
  const room = (plane.contextTokens ?? 0) - (tokensMax ?? 0);
  const kept = truncated(whole, { keep, side, room });
  if (kept.length === 0) throw invalid("messages", "make a prompt without tokens");
  const wantsPrompt = fields.return_prompt_text === true;
  const how = {
    wantsText: true,
    answer: chatAnswer(plane, fields, wantsPrompt && written !== null ? await textOf() : null),
    parse: chat === null || !isParsed ? null : parserOf(plane, chat),
  };
  const prepared = request([kept], how);
  if (written === null || kept !== whole) return { prepared, fields };
  const exact = await continued(plane, prepared, textOf, encoding);
  return { prepared: exact === null ? prepared : request([exact], how), fields };
}

/**
 * The tokens of the turn before, and those of what the chat has behind their text. Encoded as a whole, the chat may get
 * other tokens for what the model said. null: it has not, or it is no such turn.
 */
async function continued(
  plane: DataPlane,
  { specs: [spec] }: Prepared,
  textOf: () => Promise<string>,
  encoding: EncodeOptions,
): Promise<Int32Array | null> {
  const before = spec === undefined ? null : plane.sidecar.turnBefore(spec);
  if (before === null || before.every((token, i) => token === spec?.prompt[i])) return null;
  const said = await plane.encoder.decode(before, encoding.signal);
  const text = await textOf();
  if (!text.startsWith(said)) return null;
  const news = [text.slice(said.length)];
  const [rest = []] = await plane.encoder.encode(news, { ...encoding, addSpecial: false });
  return Int32Array.from([...before, ...rest]);
}

function withTools(fields: Fields, { structured, stopTokenIds }: Constraints): Fields {
  const stops = [...(fields.stop_token_ids ?? []), ...stopTokenIds];
  return {
    ...fields,
    stop_token_ids: [...new Set(stops)],
    ...(structured === null ? {} : { structured_outputs: structured }),
  };
}

function parserOf(plane: DataPlane, chat: Chat): NonNullable<Prepared["parse"]> {
  const engines = present(plane.engines, "an engine has rendered the chat");
  return async (output) => await parseTools(engines, output, chat);
}
