// Chats as clients send them, and the parts that whoever makes the prompt gets: one schema for the chat route, /tokenize,
// rollouts and prompt files.

import * as v from "valibot";
import { membersOf, objectOf } from "../../proto/json.ts";
import { type Chat, TEXT_OF_PART } from "../../text/text.ts";
import { fieldOf, invalid } from "../route.ts";
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
  /** Passed on to an engine that renders the chat, which must trust it; refused where none does. */
  chat_template: v.nullish(f.text),
  chat_template_kwargs: v.nullish(f.fieldsOfAnyKind),
  documents: v.nullish(f.listOf(f.fieldsOfAnyKind, TOOLS_MAX)),
  reasoning_effort: f.oneOf("none", "minimal", "low", "medium", "high", "xhigh", "max"),
  ...f.refusing("prompts are text", "media_io_kwargs", "mm_processor_kwargs"),
  required_prefix_token_ids: f.unsupported("send the tokens to /v1/chat/completions/tokens"),
} as const;

export const messageList = f.listOf(message, MESSAGES_MAX);

const TemplateSchema = v.object({ ...TEMPLATE_ENTRIES, messages: messageList });
export type TemplateFields = v.InferOutput<typeof TemplateSchema>;

/** Name of the first given field that only a template reads; null: there is none. */
export function templateFieldOf(fields: object): string | null {
  const values: Record<string, unknown> = { ...fields };
  return Object.keys(TEMPLATE_ENTRIES).find((name) => (values[name] ?? null) !== null) ?? null;
}

/** Fields of a request that its prompt depends on. */
const RENDERED_FIELDS = [
  "messages",
  ...Object.keys(TEMPLATE_ENTRIES),
  "tool_choice",
  "add_special_tokens",
  "truncate_prompt_tokens",
  "truncation_side",
];
/** Fields that an engine's parser of tool calls reads besides. */
const PARSED_FIELDS = [
  "parallel_tool_calls",
  "include_reasoning",
  "structured_outputs",
  "stop_token_ids",
];

export interface ChatContext {
  /** JSON of the object whose fields these are, as the client wrote it. */
  readonly source: string;
  /** Where the fields stand in the body, for errors. Default: at its top. */
  readonly at?: string;
  /** Limit of output tokens. Default: 1, because without a limit the engine takes the rest of its context. */
  readonly tokensMax?: number | null;
  /** Whether the response is parsed for tool calls. Default: no. */
  readonly isParsed?: boolean;
}

/** The chat as its renderer gets it, in the client's own JSON. @throws InvalidFieldError. */
export function chatOf(fields: TemplateFields, context: ChatContext): Chat {
  const { source, at = "", tokensMax = null, isParsed = false } = context;
  if (fields.messages.length === 0) throw invalid(`${at}messages`, "is empty");
  for (const [i, { content }] of fields.messages.entries()) {
    const parts = Array.isArray(content) ? content : [];
    const wrong = parts.findIndex((part) => !isText(part));
    if (wrong < 0) continue;
    throw invalid(`${at}messages.${i}.content.${wrong}`, "is not a part of text: prompts are text");
  }
  const continues = fields.continue_final_message === true;
  // vLLM has a generation prompt by default, and refuses both only when both are asked for.
  if (continues && fields.add_generation_prompt === true) {
    throw invalid(`${at}continue_final_message`, "and add_generation_prompt are both true");
  }
  const given: Readonly<Record<string, unknown>> = fields;
  const written = membersOf(source);
  const chat = new Map<string, string>();
  for (const name of [...RENDERED_FIELDS, ...(isParsed ? PARSED_FIELDS : [])]) {
    const value = given[name] ?? null;
    if (value !== null) chat.set(name, written.get(name) ?? JSON.stringify(value));
  }
  if (continues) chat.set("add_generation_prompt", "false");
  chat.set("max_completion_tokens", `${tokensMax ?? 1}`);
  return objectOf(chat);
}

function isText(part: unknown): boolean {
  if (typeof part === "string") return true;
  const field = TEXT_OF_PART.get(fieldOf(part, "type") ?? "text");
  return field !== undefined && typeof fieldOf(part, field) === "string";
}
