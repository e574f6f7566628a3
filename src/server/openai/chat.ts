// POST /v1/chat/completions and its two relatives: /tokens takes the prompt as tokens beside the messages
// (prime-rl), /render answers with the request to /inference/v1/generate that the chat amounts to.

import { invalid } from "../route.ts";
import { chatAnswer } from "./chat-answer.ts";
import { type ChatFields, chatRequest, chatTokensRequest } from "./chat-fields.ts";
import { withFormat } from "./common-fields.ts";
import * as f from "./fields.ts";
import * as json from "./json.ts";
import { chatOf } from "./messages.ts";
import type { Plan } from "./plan.ts";
import type { ChatPrompt, ParsedRequest } from "./request.ts";
import { SAMPLING_ENTRIES } from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";
import { answeringTool, wantsTools } from "./tool-calls.ts";

/** `source`: the body as its client wrote it. @throws InvalidFieldError. */
export function parseChat(body: unknown, source: string): ParsedRequest {
  const fields = f.checked(chatRequest, body);
  const { input_ids: tokens = null } = fields;
  return parsed(fields, source, tokens === null ? null : { tokens, name: "input_ids" });
}

/** @throws InvalidFieldError. */
export function parseChatTokens(body: unknown, source: string): ParsedRequest {
  const { tokens, ...fields } = f.checked(chatTokensRequest, body);
  return parsed(fields, source, { tokens, name: "tokens" });
}

/** The body for /inference/v1/generate that the planned chat is equal to. */
export function renderedChat(model: ServedModel, body: unknown, plan: Plan): object {
  const fields = f.checked(chatRequest, body);
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

/** Maps SGLang's names of fields that vLLM has too. */
function fromSglang(fields: ChatFields): ChatFields {
  const { no_stop_trim: keeps, lora_path: adapter, routed_experts_start_len: start } = fields;
  return {
    ...fields,
    model: adapter ?? fields.model,
    include_stop_str_in_output: fields.include_stop_str_in_output ?? keeps,
    routed_experts_prompt_start: fields.routed_experts_prompt_start ?? start,
  };
}

function parsed(asked: ChatFields, source: string, given: ChatPrompt["given"]): ParsedRequest {
  const fields = withFormat(fromSglang(asked));
  if (fields.return_meta_info === true && fields.stream === true) {
    throw invalid("return_meta_info", "is true, but a stream has no meta_info");
  }
  const { top_logprobs: top, truncate_prompt_tokens: keep = null, truncation_side: side } = fields;
  if (typeof top === "number" && top > 0 && !fields.logprobs) {
    throw invalid("top_logprobs", `is ${top}, but logprobs is not true`);
  }
  const tokensMax = fields.max_completion_tokens ?? fields.max_tokens ?? null;
  const isParsed = wantsTools(fields);
  const needsChat = given === null || isParsed;
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
    truncation: { keep, side },
    wantsText: true,
    prompts: {
      kind: "chat",
      chat: needsChat ? chatOf(fields, { source, tokensMax, isParsed }) : null,
      given,
      addSpecial: fields.add_special_tokens ?? false,
      toolChoice: isParsed ? { choice: fields.tool_choice } : null,
      wantsText: fields.return_prompt_text === true,
    },
    answer: (model, promptText) => chatAnswer(model, fields, promptText),
  };
}
