// Chats with tools. The engine that renders one (rendering.ts) says which constraints its tool_choice means, and an engine
// with a tool parser parses what was generated. In between the request is one like any other.

import { AppError } from "../../core/base/errors.ts";
import { objectOf } from "../../proto/json.ts";
import type { Chat } from "../../text/text.ts";
import type { EngineCalls, EngineReply } from "../engine-calls.ts";
import { fieldOf, invalid } from "../route.ts";
import type { ToolCall } from "../trajectories/trajectory.ts";
import { isTokenList } from "./fields.ts";
import type { Output, ParsedMessage } from "./output.ts";

const ADVICE = "send tool_choice: none and parse the text";

/** Longer names of tools are cut to this many characters. */
const TOOL_NAME_MAX = 128;

export interface ToolFields {
  readonly tools?: readonly unknown[] | null | undefined;
  readonly tool_choice?: unknown;
}

/** Whether a response has to be parsed for tool calls. @throws InvalidFieldError: a choice without tools. */
export function wantsTools({ tools, tool_choice: choice }: ToolFields): boolean {
  const hasTools = (tools?.length ?? 0) > 0;
  if (choice === "none") return false;
  if ((choice ?? null) === null) return hasTools;
  if (!hasTools) throw invalid("tool_choice", "is set, but tools is not");
  return true;
}

/**
 * What the engine that rendered a chat asks of the response. `structured`: a structure that its parser can read; null: none
 * (tool_choice auto). `beside`: fields about reasoning, which delays it. @throws InvalidFieldError: no engine parses tool calls.
 */
export function constraintsOf(reply: EngineReply, choice: unknown) {
  if (reply.kind === "missing") {
    const choiceText = JSON.stringify(choice ?? "auto");
    const problem = `is ${choiceText}, and no worker parses tool calls (${reply.reasons}): ${ADVICE}`;
    throw invalid("tool_choice", problem);
  }
  const { body } = reply;
  const params = fieldOf(body, "sampling_params");
  const structured = withoutNulls(fieldOf(params, "structured_outputs"));
  const stops = fieldOf(params, "stop_token_ids");
  const names = structured === null ? [] : ["reasoning_ended", "reasoning_parser_kwargs"];
  return {
    structured,
    stopTokenIds: isTokenList(stops) ? [...stops] : [],
    beside: Object.fromEntries(names.map((name) => [name, fieldOf(body, name)])),
  };
}

/** Parses one response that has ended. @throws AppError as EngineCalls.post. */
export async function parseTools(
  engines: EngineCalls,
  output: Output,
  chat: Chat,
): Promise<ParsedMessage> {
  const tokens = output.textTokens();
  if (tokens.length === 0) return { content: "", reasoning: null, toolCalls: [] };
  const finish = output.finish === "abort" ? "stop" : output.finish;
  const response = {
    request_id: "foretoken",
    choices: [{ index: 0, token_ids: [...tokens], finish_reason: finish }],
  };
  const body = objectOf(
    new Map([
      ["generate_response", JSON.stringify(response)],
      ["prompt_token_ids", `[${output.prompt.join(",")}]`],
      ["chat_request", chat],
    ]),
  );
  // The response is there: its client may ask for it again, so that no client's leaving ends this.
  const { signal } = new AbortController();
  const reply = await engines.post({ form: "derender", body, signal });
  if (reply.kind === "missing") throw unreadable(`is gone (${reply.reasons})`);
  const message = fieldOf(listOf(fieldOf(reply.body, "choices"))[0], "message");
  if (typeof message !== "object" || message === null) throw unreadable("has no message");
  return {
    content: withoutStop(textOf(fieldOf(message, "content")), output),
    reasoning: textOf(fieldOf(message, "reasoning")),
    toolCalls: listOf(fieldOf(message, "tool_calls")),
  };
}

/** The functions that the message calls; null: it was not parsed for any. */
export function callsIn(message: Pick<ParsedMessage, "toolCalls"> | null): ToolCall[] {
  return (message?.toolCalls ?? []).map((call) => {
    const target = fieldOf(call, "function");
    return {
      name: textOf(fieldOf(target, "name")) ?? "",
      arguments: textOf(fieldOf(target, "arguments")) ?? "",
    };
  });
}

/** The tool that the message calls first; null: none. */
export function calledTool(message: Pick<ParsedMessage, "toolCalls">): string | null {
  return callsIn(message)[0]?.name.slice(0, TOOL_NAME_MAX) || null;
}

/** The tool whose output the last message is: by its own name, or by that of the call that it answers. null: none. */
export function answeringTool(
  messages: readonly Readonly<Record<string, unknown>>[],
): string | null {
  const last = messages.at(-1);
  if (last?.role !== "tool") return null;
  if (typeof last.name === "string") return last.name.slice(0, TOOL_NAME_MAX);
  const caller = messages.findLast(({ role }) => role === "assistant");
  const toolCalls = listOf(fieldOf(caller, "tool_calls"));
  const asked = toolCalls.filter((call) => fieldOf(call, "id") === last.tool_call_id);
  return calledTool({ toolCalls: asked.length > 0 ? asked : toolCalls });
}

/** vLLM's finish_reason: a chosen function that was named by the client is no reason of its own. */
export function finishWithTools(output: Output, { tool_choice: choice }: ToolFields): string {
  const isNamed = typeof choice === "object" && choice !== null;
  const isCalled = (output.message?.toolCalls.length ?? 0) > 0 && !isNamed;
  const isWhole = choice === "required" ? output.finish === "stop" : output.finish !== "abort";
  return isCalled && isWhole ? "tool_calls" : `${output.finish}`;
}

/** The content without its stop string, which an engine's parser, having only tokens, leaves in it. */
function withoutStop(content: string | null, output: Output): string | null {
  const stop = output.stopReason;
  if (content === null || typeof stop !== "string" || output.keepsStop) return content;
  const at = content.lastIndexOf(stop);
  return at < 0 ? content : content.slice(0, at);
}

function unreadable(problem: string): AppError {
  return new AppError("worker_failed", `an engine's answer to derender ${problem}`);
}

function listOf(value: unknown): readonly unknown[] {
  return Array.isArray(value) ? value : [];
}

function textOf(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

/** The fields that a client would set: null ones, and those whose names begin with "_", are the engine's own. */
function withoutNulls(value: unknown): Record<string, unknown> | null {
  if (typeof value !== "object" || value === null) return null;
  const fields = Object.entries(value).filter(
    ([name, one]) => one !== null && one !== false && !name.startsWith("_"),
  );
  return fields.length === 0 ? null : Object.fromEntries(fields);
}
