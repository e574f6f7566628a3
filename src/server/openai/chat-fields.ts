// The body of POST /v1/chat/completions and its relatives.

import * as v from "valibot";
import { TOKENS_MAX } from "../../core/request/sampling-bounds.ts";
import { COMMON_ENTRIES, OPENAI_ENTRIES } from "./common-fields.ts";
import * as f from "./fields.ts";
import { messageList, TEMPLATE_ENTRIES } from "./messages.ts";
import { MAX_TOKENS_FIELD, SAMPLING_ENTRIES, TOP_LOGPROBS_FIELD } from "./sampling-fields.ts";

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

export type ChatFields = v.InferOutput<typeof chatRequest>;
