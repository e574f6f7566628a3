// Chat messages as clients send them, and what the model's template is given of them: one schema for the chat route,
// /tokenize, rollouts and prompt files.

import * as v from "valibot";
import type { ChatMessage, ChatOptions } from "../../text/text.ts";
import { invalid } from "../route.ts";
import * as f from "./fields.ts";

const MESSAGES_MAX = 65_536;
const TOOLS_MAX = 1024;

const message = v.looseObject(
  {
    role: f.text,
    content: v.nullish(
      v.union([f.text, v.array(v.unknown())], f.isNot("a text or a list of parts")),
    ),
  },
  (issue) => (issue.input === undefined ? "is missing" : f.isNot("an object")(issue)),
);

export const TEMPLATE_ENTRIES = {
  tools: v.nullish(f.listOf(f.fieldsOfAnyKind, TOOLS_MAX)),
  add_generation_prompt: f.flag,
  continue_final_message: f.flag,
  chat_template: f.unsupported("prompts are made with the model's own template"),
  chat_template_kwargs: v.nullish(f.fieldsOfAnyKind),
  documents: v.nullish(f.listOf(f.fieldsOfAnyKind, TOOLS_MAX)),
  reasoning_effort: f.oneOf("none", "minimal", "low", "medium", "high", "xhigh", "max"),
  ...f.refusing("prompts are text", "media_io_kwargs", "mm_processor_kwargs"),
  required_prefix_token_ids: f.unsupported("send the tokens to /v1/chat/completions/tokens"),
} as const;

export const messageList = f.listOf(message, MESSAGES_MAX);

const TemplateSchema = v.object({ ...TEMPLATE_ENTRIES, messages: messageList });
export type TemplateFields = v.InferOutput<typeof TemplateSchema>;

export interface Chat {
  readonly messages: readonly ChatMessage[];
  readonly options: ChatOptions;
}

/** The first field of those that only a template reads; null: there is none. */
export function templateFieldOf(fields: object): string | null {
  const given: Record<string, unknown> = { ...fields };
  return Object.keys(TEMPLATE_ENTRIES).find((name) => (given[name] ?? null) !== null) ?? null;
}

/** `at`: where the fields stand in the body, for errors. @throws InvalidFieldError. */
export function chatOf(fields: TemplateFields, at = ""): Chat {
  if (fields.messages.length === 0) throw invalid(`${at}messages`, "is empty");
  const continues = fields.continue_final_message ?? false;
  // vLLM has a generation prompt by default, and refuses both only when both are asked for.
  if (continues && fields.add_generation_prompt === true) {
    throw invalid(`${at}continue_final_message`, "and add_generation_prompt are both true");
  }
  const variables: Record<string, unknown> = { ...fields.chat_template_kwargs };
  if (fields.documents) variables.documents = fields.documents;
  if (fields.reasoning_effort) variables.reasoning_effort ??= fields.reasoning_effort;
  const options = {
    addGenerationPrompt: !continues && (fields.add_generation_prompt ?? true),
    continueFinalMessage: continues,
    tools: fields.tools ?? null,
    variables,
  };
  return {
    messages: fields.messages.map((one, i) => plainMessage(one, `${at}messages.${i}`)),
    options,
  };
}

function plainMessage(given: v.InferOutput<typeof message>, at: string): ChatMessage {
  const { content } = given;
  if (typeof content === "string" || content === null || content === undefined) {
    return { ...given, content: content ?? null };
  }
  const parts = content.map((part, i) => {
    const isText =
      typeof part === "object" && part !== null && "text" in part && typeof part.text === "string";
    if (isText) return part.text;
    throw invalid(`${at}.content.${i}`, "is not a part of text: prompts are text");
  });
  return { ...given, content: parts.join("\n") };
}
