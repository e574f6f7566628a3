// POST /v1/chat/completions and its two relatives: /tokens takes the prompt as tokens beside the messages
// (prime-rl), /render answers with the request to /inference/v1/generate that the chat amounts to. Answers are field by
// field vLLM's (vllm/entrypoints/openai/chat_completion/protocol.py).

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { invalid } from "../route.ts";
import { type Answer, answerBy, escaped, idsOf, type News, promptIds } from "./answer.ts";
import * as f from "./fields.ts";
import type { Job } from "./job.ts";
import * as json from "./json.ts";
import { chatOf, messageList, TEMPLATE_ENTRIES } from "./messages.ts";
import { metaInfoJson } from "./meta-info.ts";
import type { ParsedRequest, Plan } from "./plan.ts";
import {
  COMMON_ENTRIES,
  MAX_TOKENS_FIELD,
  OPENAI_ENTRIES,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
  usageWanted,
  withFormat,
} from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";
import { answeringTool, finishWithTools, wantsTools } from "./tool-calls.ts";

const CHAT_ENTRIES = {
  ...SAMPLING_ENTRIES,
  ...COMMON_ENTRIES,
  ...OPENAI_ENTRIES,
  ...TEMPLATE_ENTRIES,
  messages: messageList,
  max_completion_tokens: MAX_TOKENS_FIELD,
  logprobs: f.flag,
  top_logprobs: TOP_LOGPROBS_FIELD,
  tool_choice: v.nullish(v.union([f.text, f.fieldsOfAnyKind], f.isNot("a text or an object"))),
  return_prompt_text: f.flag,
  echo: f.unsupported("only the new message is answered", false),
  // They mean something to an engine's parser alone.
  parallel_tool_calls: f.flag,
  include_reasoning: f.flag,
  ...f.refusing("answers are text", "modalities", "audio"),
  functions: f.unsupported("tools takes its place"),
  function_call: f.unsupported("tool_choice takes its place"),
  // SGLang's, as miles' server of sessions sends them: the prompt as tokens beside the messages, and `meta_info`.
  input_ids: v.nullish(f.tokenList),
  return_meta_info: f.flag,
  no_stop_trim: f.flag,
  lora_path: f.name,
  routed_experts_start_len: f.integer(0, TOKENS_MAX),
  return_indexer_topk: f.unsupported("no worker reports it", false),
} as const;

export const chatRequest = v.strictObject(CHAT_ENTRIES);
export const chatTokensRequest = v.strictObject({ ...CHAT_ENTRIES, tokens: f.tokenList });

type ChatFields = v.InferOutput<typeof chatRequest>;

/** `source`: the body as its client wrote it. @throws InvalidFieldError. */
export function parseChat(fields: ChatFields, source: string): ParsedRequest {
  const { input_ids: tokens } = fields;
  return parsed(fields, source, tokens ? { tokens, field: "input_ids" } : null);
}

type ChatTokensFields = v.InferOutput<typeof chatTokensRequest>;

export function parseChatTokens(body: ChatTokensFields, source: string): ParsedRequest {
  const { tokens, ...fields } = body;
  return parsed(fields, source, { tokens, field: "tokens" });
}

/** The body for /inference/v1/generate that the planned chat is equal to. */
export function renderedChat(model: ServedModel, fields: ChatFields, plan: Plan): object {
  const [spec] = plan.specs;
  const params: Record<string, unknown> = {};
  for (const name of Object.keys(SAMPLING_ENTRIES) as (keyof typeof SAMPLING_ENTRIES)[]) {
    if ((plan.params[name] ?? null) !== null) params[name] = plan.params[name];
  }
  params.max_tokens = spec?.sampling.tokensMax;
  if (fields.logprobs === true) params.logprobs = fields.top_logprobs ?? 0;
  if ((fields.vllm_xargs ?? null) !== null) params.extra_args = fields.vllm_xargs;
  return {
    request_id: `chatcmpl-${fields.request_id ?? crypto.randomUUID().replaceAll("-", "")}`,
    token_ids: [...(spec?.prompt ?? [])],
    features: null,
    sampling_params: params,
    model: fields.lora_path ?? fields.model ?? model.name,
    stream: fields.stream ?? false,
    stream_options: fields.stream_options ?? null,
    cache_salt: fields.cache_salt ?? null,
    priority: fields.priority ?? 0,
    kv_transfer_params: null,
  };
}

function fromSglang(fields: ChatFields): ChatFields {
  const { no_stop_trim: keeps, lora_path: adapter, routed_experts_start_len: start } = fields;
  return {
    ...fields,
    model: adapter ?? fields.model,
    include_stop_str_in_output: fields.include_stop_str_in_output ?? keeps,
    routed_experts_prompt_start: fields.routed_experts_prompt_start ?? start,
  };
}

/** `given`: the prompt's tokens beside the chat; null: the chat makes them. */
function parsed(
  asked: ChatFields,
  source: string,
  given: { tokens: f.TokenList; field: string } | null,
): ParsedRequest {
  const fields = withFormat(fromSglang(asked));
  if (fields.return_meta_info === true && fields.stream === true) {
    throw invalid("return_meta_info", "is true, but a stream has no meta_info");
  }
  const { top_logprobs: top } = fields;
  if (typeof top === "number" && top > 0 && !fields.logprobs) {
    throw invalid("top_logprobs", `is ${top}, but logprobs is not true`);
  }
  const tokensMax = fields.max_completion_tokens ?? fields.max_tokens ?? null;
  const isParsed = wantsTools(fields);
  const needsChat = given === null || isParsed;
  const chat = needsChat ? chatOf(fields, { source, tokensMax, isParsed }) : "";
  const part = {
    params: fields,
    tokensMax,
    topLogprobs: json.alternativesFor(top ?? 0),
    extraArgs: fields.vllm_xargs ?? {},
    tool: answeringTool(fields.messages),
  };
  return {
    fields,
    parts: [part],
    wantsText: true,
    prompts: given
      ? { kind: "tokens", lists: [given.tokens], names: () => given.field }
      : { kind: "chat", chat, addSpecial: fields.add_special_tokens ?? false },
    tools: isParsed ? { chat, choice: fields.tool_choice } : null,
    showsPrompt: fields.return_prompt_text === true,
    answer: (model, promptText) => answerOf(model, fields, promptText),
  };
}

/** Fields of OpenAI's message that no model here fills. */
const NOT_THERE = `"refusal":null,"annotations":null,"audio":null,"function_call":null`;

/** `promptText` null: it was not requested, or is not known. */
function answerOf(model: ServedModel, fields: ChatFields, promptText: string | null): Answer {
  const { return_token_ids: returnsIds, return_meta_info: returnsMeta } = fields;
  const usage = usageWanted(fields);
  const top = fields.logprobs === true ? (fields.top_logprobs ?? 0) : null;
  const names = fields.return_tokens_as_token_ids ? model.numberedNames : model.writtenNames;
  const named = JSON.stringify(model.answeredName(fields.model));
  const isNew = fields.continue_final_message !== true && (fields.add_generation_prompt ?? true);
  const lastRole = fields.messages.at(-1)?.role;
  const role = JSON.stringify(isNew ? "assistant" : (lastRole ?? "assistant"));
  const promptOf = ({ outputs: [first] }: Job) => {
    const ids = returnsIds && first !== undefined ? promptIds(first) : "null";
    return `"prompt_token_ids":${ids},"prompt_text":${JSON.stringify(promptText)}`;
  };
  const logprobsOf = (span: json.TokenSpan | null) => {
    if (top === null) return "null";
    return span === null ? `{"content":[]}` : json.chatLogprobs(span, names, top);
  };
  const shown = { returnsLogprobs: top !== null, top: top ?? 0, writesTokens: false, support: 0 };
  const meta = { model, ...shown, returnsExperts: fields.return_routed_experts ?? false };
  return answerBy({
    model,
    usage,
    showsTokens: top !== null || returnsIds === true,
    opening: ({ id, created }, isStream) =>
      `"id":"chatcmpl-${escaped(id)}","object":"chat.completion${isStream ? ".chunk" : ""}","created":${created},"model":${named}`,
    choice(news) {
      const { job, output, span, isWhole } = news;
      // SGLang writes a message of tool calls alone with an empty text, which miles insists on.
      const said = isWhole
        ? `"message":{"role":${role},${messageJson(news, returnsMeta === true ? "" : null)}}`
        : `"delta":{${deltaJson(news)}}`;
      const hasMeta = isWhole && returnsMeta === true;
      const about = hasMeta ? `,"meta_info":${metaInfoJson(output, { id: job.id, ...meta })}` : "";
      return `${said},"logprobs":${logprobsOf(span)},"token_ids":${returnsIds ? idsOf(span) : "null"}${about}`;
    },
    finish: (output) => finishWithTools(output, fields),
    closing(job) {
      const report = job.outputs[0]?.promptReport;
      return `"prompt_logprobs":${json.reportJson(report?.logprobs)},"service_tier":null,"system_fingerprint":null,${promptOf(job)},"kv_transfer_params":null`;
    },
    head(job, opening) {
      const counts = { promptTokens: job.promptTokens, completionTokens: 0 };
      const none = json.usageJson({ ...counts, promptTokensCached: null });
      const behind = `${promptOf(job)}${usage.always ? `,"usage":${none}` : ""}`;
      // vLLM opens with a chunk for each choice that holds the role.
      const chunks = job.outputs.map(
        ({ index }) =>
          `${opening}{"index":${index},"delta":{"role":${role},"content":""},"logprobs":null,"finish_reason":null}],${behind}}\n\n`,
      );
      return chunks.join("");
    },
  });
}

/** A choice's message. `noContent`: JSON for the content of a message without any. */
function messageJson({ output: { message }, text }: News, noContent: string | null): string {
  if (message === null) return `"content":${JSON.stringify(text)},${NOT_THERE},"reasoning":null`;
  const content = JSON.stringify(message.content ?? noContent);
  return `"content":${content},${NOT_THERE},"tool_calls":${JSON.stringify(message.toolCalls)},"reasoning":${JSON.stringify(message.reasoning)}`;
}

function deltaJson({ output: { message }, text }: News): string {
  if (message === null) return `"content":${JSON.stringify(text)}`;
  const { content, reasoning, toolCalls } = message;
  const fields = [`"content":${JSON.stringify(content)}`];
  if (reasoning !== null) fields.push(`"reasoning":${JSON.stringify(reasoning)}`);
  if (toolCalls.length > 0) {
    const calls = toolCalls.map((call, index) => ({ index, ...Object(call) }));
    fields.push(`"tool_calls":${JSON.stringify(calls)}`);
  }
  return fields.join(",");
}
