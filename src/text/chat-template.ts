// Makes the prompt of a chat by the model's templates: Jinja with transformers' settings, over messages prepared as vLLM prepares them
// (renderers/chat_utils.py, renderers/hf.py), so that engines here and vLLM servers see the same prompt.

import { AppError, errorText, InvalidFieldError } from "../core/base/errors.ts";
import { Scope } from "./jinja/expressions.ts";
import { GLOBALS } from "./jinja/library.ts";
import { stripped } from "./jinja/operations.ts";
import { type Program, parsed } from "./jinja/parser.ts";
import {
  type Dict,
  isDict,
  isList,
  isTrue,
  parsedJson,
  shown,
  type Value,
} from "./jinja/values.ts";
import { type Chat, TEXT_OF_PART } from "./text.ts";

/** Marks the end of a message that the response is to continue. */
const OPEN_END = "CONTINUE_FINAL_MESSAGE_TAG ";

export class ChatTemplate {
  readonly #programs = new Map<string, Program & { readonly knowsDeveloper: boolean }>();
  /** Variables of the tokenizer for templates: `bos_token`, `eos_token`, ... */
  readonly #tokens: Readonly<Record<string, string>>;
  /** Why no chat can be rendered; null: chats can be. */
  readonly problem: string | null = null;

  /** `sources`: templates by name; empty: the model has no template. */
  constructor(sources: ReadonlyMap<string, string>, tokens: Readonly<Record<string, string>>) {
    this.#tokens = tokens;
    try {
      for (const [name, source] of sources) {
        const knowsDeveloper = /(["'])developer\1/.test(source);
        this.#programs.set(name, { ...parsed(source), knowsDeveloper });
      }
    } catch (error) {
      this.problem = `the model's chat template cannot be used: ${errorText(error)}`;
    }
  }

  /** Renders a chat as a prompt. @throws InvalidFieldError: no template, or it refuses; AppError model_unreadable: `problem`. */
  render(chat: Chat): string {
    const fields = parsedJson(chat) as Dict;
    if (this.problem !== null) throw new AppError("model_unreadable", this.problem);
    if (isTrue(fields.get("chat_template"))) {
      const problem = "is given, but only engines that render chats take one (vLLM)";
      throw new InvalidFieldError({ where: "chat", field: "chat_template", problem });
    }
    try {
      return this.#written(fields);
    } catch (cause) {
      if (cause instanceof InvalidFieldError) throw cause;
      throw refused(`are refused by the model's chat template: ${errorText(cause)}`);
    }
  }

  #written(fields: Dict): string {
    const tools = isTrue(fields.get("tools")) ? toolsOf(fields.get("tools")) : null;
    const named = tools === null ? null : this.#programs.get("tool_use");
    const program = named ?? this.#programs.get("default");
    if (program === undefined) throw refused("need a chat template, and the model has none");
    const continues = isTrue(fields.get("continue_final_message"));
    const unmerged = itemsIn(fields.get("messages")).map((one) => prepared(one, program));
    const messages = program.knowsDeveloper ? unmerged : withoutDevelopers(unmerged);
    if (continues) leaveOpen(messages.at(-1));
    const scope = new Scope(null, GLOBALS);
    for (const [name, token] of Object.entries(this.#tokens)) scope.set(name, token);
    const variables = fields.get("chat_template_kwargs");
    if (isDict(variables)) for (const [name, one] of variables) scope.set(shown(name), one);
    const effort = fields.get("reasoning_effort");
    if (isTrue(effort)) {
      scope.set("reasoning_effort", effort);
      // Templates that leave thinking out by default are asked for it.
      const thinks = isDict(variables) ? variables.get("enable_thinking") : undefined;
      if (thinks === undefined) scope.set("enable_thinking", effort !== "none");
    }
    scope.set("documents", fields.get("documents") ?? null);
    scope.set("messages", messages);
    scope.set("tools", tools);
    scope.set("add_generation_prompt", fields.get("add_generation_prompt") ?? !continues);
    const text = program.write(scope);
    return continues ? cutOpen(text) : text;
  }
}

function refused(problem: string): InvalidFieldError {
  return new InvalidFieldError({ where: "chat", field: "messages", problem });
}

type Message = Map<Value, Value>;

function dictOf(fields: Readonly<Record<string, Value>>): Message {
  return new Map(Object.entries(fields));
}

function itemsIn(value: Value): readonly Value[] {
  return isList(value) ? value : [];
}

/** The listed fields of an object, in this order; `needed` ones are null where they are absent, `others` are left out. */
function knownFields(object: Value, needed: readonly string[], others: readonly string[]): Message {
  const all: Message = new Map();
  const dict = isDict(object) ? object : new Map<Value, Value>();
  for (const name of needed) all.set(name, dict.get(name) ?? null);
  for (const name of others) if ((dict.get(name) ?? null) !== null) all.set(name, dict.get(name));
  return all;
}

function toolsOf(tools: Value): readonly Value[] {
  return itemsIn(tools).map((tool) => {
    if (!isDict(tool) || !isDict(tool.get("function"))) return tool;
    const named = ["name", "description", "parameters"];
    const called = knownFields(tool.get("function"), named, ["strict", "defer_loading"]);
    return dictOf({ type: "function", function: called });
  });
}

/** A message as vLLM prepares it. Its parts stay a list if the template loops over them, else they are joined as lines. */
function prepared(value: Value, { loopsOverParts }: Program): Message {
  const message = isDict(value) ? value : new Map<Value, Value>();
  const role = message.get("role");
  const content = message.get("content") ?? [];
  const texts = (isList(content) ? content : [content]).map(textOfPart);
  const isParts = loopsOverParts && role !== "tool";
  const parts = texts.map((text): Message => dictOf({ type: "text", text }));
  const all = dictOf({ role, content: isParts ? parts : texts.join("\n") });
  const set = (name: string, value: Value) => {
    if (typeof value === "string") all.set(name, value);
  };
  if (role === "assistant") {
    const calls = itemsIn(message.get("tool_calls"));
    if (calls.length > 0) all.set("tool_calls", calls.map(calledWith));
    const reasoning = message.get("reasoning") ?? message.get("reasoning_content");
    set("reasoning", reasoning);
    set("reasoning_content", reasoning);
  }
  if (role === "tool") set("tool_call_id", message.get("tool_call_id"));
  set("name", message.get("name"));
  set("task", message.get("task"));
  if (role === "developer") all.set("tools", message.get("tools") ?? null);
  return all;
}

function textOfPart(part: Value): string {
  if (!isDict(part)) return shown(part);
  return shown(part.get(TEXT_OF_PART.get(part.get("type") ?? "text") ?? "text"));
}

/** A tool call whose arguments are an object, empty if they cannot be parsed as one. */
function calledWith(call: Value): Value {
  if (!isDict(call)) return call;
  const called = call.get("function");
  const written = isDict(called) ? called.get("arguments") : null;
  let read: Value = written;
  try {
    if (typeof written === "string") read = parsedJson(written);
  } catch {
    read = null;
  }
  const all = knownFields(call, ["id"], []);
  const name = isDict(called) ? called.get("name") : undefined;
  all.set("function", dictOf({ arguments: isDict(read) ? read : new Map(), name }));
  all.set("type", call.get("type") ?? "function");
  return all;
}

/** The messages for templates without a developer role: one system message at the beginning. */
function withoutDevelopers(messages: readonly Message[]): readonly Message[] {
  if (!messages.some((message) => message.get("role") === "developer")) return messages;
  for (const message of messages) {
    if (message.get("role") !== "developer") continue;
    message.set("role", "system");
    message.delete("tools");
  }
  const system = messages.filter((message) => message.get("role") === "system");
  if (system.length === 1 && messages[0] === system[0]) return messages;
  const texts = system.map((message) => {
    const content = message.get("content") ?? "";
    return isList(content) ? content.map(textOfPart).join("\n") : shown(content);
  });
  const content = texts.filter((text) => text !== "").join("\n\n");
  const merged = dictOf({ role: "system", content });
  return [merged, ...messages.filter((message) => !system.includes(message))];
}

function leaveOpen(message: Message | undefined): void {
  const content = message?.get("content");
  const part = isList(content) ? content.at(-1) : null;
  if (part instanceof Map) part.set("text", shown(part.get("text")) + OPEN_END);
  else if (typeof content === "string") message?.set("content", content + OPEN_END);
  else throw refused("end with no text that could be continued");
}

/** The prompt up to the mark. A template may strip the message's end, and with it the mark's. */
function cutOpen(text: string): string {
  const at = text.lastIndexOf(OPEN_END.trim());
  if (at < 0) throw refused("end with a text that the chat template does not show as it is");
  const before = text.slice(0, at);
  return text.startsWith(OPEN_END, at) ? before : stripped(before, null, false);
}
