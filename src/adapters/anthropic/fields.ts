// Bodies of Anthropic's Messages API (https://docs.anthropic.com/en/api/messages), translated to chat completions as vLLM
// does (vllm/entrypoints/anthropic/serving.py).

import * as v from "valibot";
import { membersOf, objectOf } from "../../proto/json.ts";
import * as f from "../../server/openai/fields.ts";
import { MAX_TOKENS_FIELD, STOPS } from "../../server/openai/sampling-fields.ts";
import { invalid } from "../../server/route.ts";

const MESSAGES_MAX = 65_536;
const BLOCKS_MAX = 65_536;
const TOOLS_MAX = 1024;
/** How a block begins in which Claude Code attributes the request. It differs from request to request, and is left out. */
const ATTRIBUTION = "x-anthropic-billing-header";

const blocks = v.union(
  [f.text, f.listOf(f.fieldsOfAnyKind, BLOCKS_MAX)],
  f.isNot("a text or a list of blocks"),
);
const required = <T extends v.GenericSchema>(schema: T) => v.nonOptional(schema, "is missing");

const oneOf = <const T extends readonly string[]>(...names: T) => required(f.oneOf(...names));

const message = v.looseObject(
  {
    role: oneOf("user", "assistant", "system"),
    content: required(blocks),
  },
  f.isNot("an object"),
);

const tool = v.looseObject(
  {
    name: required(f.text),
    description: v.nullish(f.text),
    input_schema: required(f.fieldsOfAnyKind),
  },
  f.isNot("an object"),
);

const choice = v.strictObject({
  type: oneOf("auto", "any", "tool", "none"),
  name: v.nullish(f.text),
  disable_parallel_tool_use: f.flag,
});

const NO_SERVER_TOOLS = "tools run where the agent is";

const PROMPT_ENTRIES = {
  model: v.nullish(f.text),
  messages: required(f.listOf(message, MESSAGES_MAX)),
  system: v.nullish(blocks),
  tools: v.nullish(f.listOf(tool, TOOLS_MAX)),
  tool_choice: v.nullish(choice),
  thinking: v.nullish(
    v.strictObject({
      type: oneOf("enabled", "disabled", "adaptive"),
      budget_tokens: f.integer(1, 2 ** 31 - 1),
      display: v.nullish(f.text),
    }),
  ),
  output_config: v.nullish(
    v.strictObject({
      effort: f.oneOf("low", "medium", "high", "xhigh", "max"),
      format: v.nullish(v.looseObject({ type: f.oneOf("json_schema"), schema: f.fieldsOfAnyKind })),
    }),
  ),
  chat_template_kwargs: v.nullish(f.fieldsOfAnyKind),
  thread: f.unsupported("send the whole conversation", false),
  ...f.refusing(NO_SERVER_TOOLS, "mcp_servers", "container"),
  ...f.refusing("the agent edits its own history", "context_management"),
} as const;

export const countRequest = v.strictObject(PROMPT_ENTRIES);

export const messagesRequest = v.strictObject({
  ...PROMPT_ENTRIES,
  max_tokens: required(MAX_TOKENS_FIELD),
  stop_sequences: v.nullish(STOPS),
  stream: f.flag,
  temperature: v.nullish(v.unknown()),
  top_p: v.nullish(v.unknown()),
  top_k: v.nullish(v.unknown()),
  cache_salt: f.name,
  vllm_xargs: v.nullish(f.fieldsOfAnyKind),
  group_id: f.name,
  session_id: f.name,
  // Change nothing in the answer.
  ...f.ignoring("metadata", "service_tier", "inference_geo"),
});

/** The chat's names of fields that have others here. */
export const OWN_NAMES: Readonly<Record<string, string>> = {
  stop: "stop_sequences",
  thinking_token_budget: "thinking.budget_tokens",
  reasoning_effort: "output_config.effort",
  response_format: "output_config.format",
  structured_outputs: "output_config.format",
};

export type CountFields = v.InferOutput<typeof countRequest>;
export type MessagesFields = v.InferOutput<typeof messagesRequest>;
type Message = CountFields["messages"][number];
type Block = Readonly<Record<string, unknown>>;

/** The tools of a chat, with the client's own JSON of their schemas, if known: values lose 1.0 and the order of names. */
function toolsJson({ tools }: CountFields, source: string): string | null {
  if (!tools) return null;
  const texts = membersOf(source);
  const written = tools.map(({ name, description, input_schema: schema }, i) => {
    const text = membersOf(texts.get(`${i}`) ?? "{}").get("input_schema");
    const parameters = membersOf(text ?? JSON.stringify(schema));
    if (!parameters.has("type")) parameters.set("type", '"object"');
    const target = new Map([["name", JSON.stringify(name)]]);
    if (description) target.set("description", JSON.stringify(description));
    target.set("parameters", objectOf(parameters));
    return `{"type":"function","function":${objectOf(target)}}`;
  });
  return `[${written.join(",")}]`;
}

/** Fields that a chat has under the same names. */
const SAMPLING = ["max_tokens", "temperature", "top_p", "top_k"] as const;
const PLACE = ["cache_salt", "group_id", "session_id", "vllm_xargs"] as const;
const SAME_FIELDS = ["model", "chat_template_kwargs", "stream", ...SAMPLING, ...PLACE] as const;

/**
 * The chat completion that a body amounts to, and JSON of the members whose text the model sees, as the client wrote them.
 * `source`: the body's text; empty: it is not known. @throws InvalidFieldError.
 */
export function chatBodyOf(fields: CountFields & Partial<MessagesFields>, source: string) {
  const written = membersOf(source);
  const tools = toolsJson(fields, written.get("tools") ?? "[]");
  const kept = new Map<string, string>();
  if (tools !== null) kept.set("tools", tools);
  const settings = written.get("chat_template_kwargs");
  if (settings !== undefined) kept.set("chat_template_kwargs", settings);
  const { output_config: output, thinking } = fields;
  const schema = output?.format?.schema;
  const chat = {
    ...Object.fromEntries(SAME_FIELDS.map((name) => [name, fields[name]])),
    messages: messagesOf(fields, membersOf(written.get("messages") ?? "[]")),
    tools: tools === null ? undefined : JSON.parse(tools),
    tool_choice: fields.tools ? choiceOf(fields.tool_choice) : undefined,
    parallel_tool_calls: fields.tool_choice?.disable_parallel_tool_use === true ? false : undefined,
    reasoning_effort: thinking?.type === "disabled" ? "none" : output?.effort,
    response_format: schema && {
      type: "json_schema",
      json_schema: { name: "json_schema", schema },
    },
    stop: fields.stop_sequences,
    thinking_token_budget: thinking?.budget_tokens,
  };
  return { fields: chat, source: objectOf(kept) };
}

function messagesOf(fields: CountFields, sources: ReadonlyMap<string, string>): object[] {
  const system = systemText(fields.system ?? "", "system");
  const said = fields.messages.flatMap((one, i) =>
    chatMessages(one, `messages.${i}`, sources.get(`${i}`) ?? "{}"),
  );
  return system === null ? said : [{ role: "system", content: system }, ...said];
}

function choiceOf(asked: CountFields["tool_choice"]): unknown {
  const { type = "auto", name = null } = asked ?? {};
  if (type === "any") return "required";
  if (type !== "tool") return type;
  if (name === null) throw invalid("tool_choice.name", "is missing");
  return { type: "function", function: { name } };
}

/** The system prompt; null: it is empty. */
function systemText(content: Message["content"], at: string): string | null {
  const given = typeof content === "string" ? [{ type: "text", text: content }] : content;
  const texts = given.map((block, i) => textOf(block, `${at}.${i}`));
  return texts.filter((text) => !text.startsWith(ATTRIBUTION)).join("") || null;
}

/** Translates a message. Tool results become messages of their own, before the user's other content. */
function chatMessages({ role, content }: Message, at: string, source: string): object[] {
  if (role === "system") {
    const text = systemText(content, `${at}.content`);
    return text === null ? [] : [{ role, content: text }];
  }
  if (typeof content === "string") return [{ role, content }];
  const results: object[] = [];
  const texts: string[] = [];
  const thoughts: string[] = [];
  const calls: object[] = [];
  const hasCalls = content.some(({ type }) => type === "tool_use");
  const written = membersOf((hasCalls && membersOf(source).get("content")) || "[]");
  for (const [i, block] of content.entries()) {
    const place = `${at}.content.${i}`;
    const { type } = block;
    if (type === "text") texts.push(textOf(block, place));
    else if (type === "thinking") thoughts.push(stringIn(block, "thinking", place));
    else if (type === "tool_use") calls.push(callOf(block, place, written.get(`${i}`) ?? "{}"));
    else if (type === "tool_result" && role === "user") results.push(resultOf(block, place));
    // What it hides is not known here.
    else if (type !== "redacted_thinking") {
      const problem = `is ${f.show(type)}: prompts are text, tool calls and their results`;
      throw invalid(`${place}.type`, problem);
    }
  }
  const parts = texts.filter((text) => text !== "").map((text) => ({ type: "text", text }));
  const said = parts.length === 1 ? (parts[0]?.text ?? "") : parts;
  if (role === "user") return parts.length === 0 ? results : [...results, { role, content: said }];
  return [
    {
      role,
      content: parts.length === 0 ? null : said,
      ...(thoughts.length > 0 && { reasoning: thoughts.join("") }),
      ...(calls.length > 0 && { tool_calls: calls }),
    },
  ];
}

function callOf(block: Block, at: string, source: string): object {
  const { input = {} } = block;
  if (!f.isObject(input)) throw invalid(`${at}.input`, `is ${f.show(input)}, not an object`);
  const written = membersOf(source).get("input") ?? JSON.stringify(input);
  const called = { name: stringIn(block, "name", at), arguments: written };
  return { id: stringIn(block, "id", at), type: "function", function: called };
}

function resultOf(block: Block, at: string): object {
  const { content = "" } = block;
  const text = Array.isArray(content)
    ? content.map((part, i) => textOf(part, `${at}.content.${i}`)).join("\n")
    : content;
  if (typeof text !== "string") throw invalid(`${at}.content`, "is not a text or a list of blocks");
  return { role: "tool", tool_call_id: stringIn(block, "tool_use_id", at), content: text };
}

function textOf(block: unknown, at: string): string {
  const type = f.isObject(block) ? block.type : block;
  if (!f.isObject(block) || type !== "text") {
    throw invalid(`${at}.type`, `is ${f.show(type)}, not text: prompts are text`);
  }
  return stringIn(block, "text", at);
}

function stringIn(block: Block, field: string, at: string): string {
  const value = block[field];
  if (typeof value === "string") return value;
  throw invalid(
    `${at}.${field}`,
    value === undefined ? "is missing" : f.isNot("a text")({ input: value }),
  );
}
