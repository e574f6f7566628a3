// Answers of Anthropic's Messages API: a message of blocks, and its events
// (https://docs.anthropic.com/en/api/messages-streaming).

import { errorBody } from "../../server/http-errors.ts";
import { type Answer, advanced } from "../../server/openai/answer.ts";
import type { Job } from "../../server/openai/job.ts";
import type { Output } from "../../server/openai/output.ts";
import { callsIn } from "../../server/openai/tool-calls.ts";
import { fieldOf } from "../../server/route.ts";

/** Agents send thinking back with its signature, which nobody here reads. */
const SIGNATURE = "foretoken";

type Block = Readonly<Record<string, unknown> & { type: string }>;

export function messageAnswer(model: string): Answer {
  return {
    whole(job) {
      const [output] = job.outputs;
      if (output === undefined) return "";
      const blocks = blocksOf(output);
      // Clients read the first block without asking whether there is one.
      const content = blocks.length === 0 ? [textBlock("")] : blocks;
      const end = endOf(output);
      return JSON.stringify({ ...opening(job, model), content, ...end, usage: usageOf(job) });
    },
    stream(job) {
      let open = -1;
      const close = () => (open < 0 ? "" : event("content_block_stop", { index: open }));
      const begin = (block: Block) => {
        const closed = close();
        open += 1;
        return `${closed}${event("content_block_start", { index: open, content_block: block })}`;
      };
      const delta = (news: object) => event("content_block_delta", { index: open, delta: news });
      return {
        head: () => {
          const none = { stop_reason: null, stop_sequence: null };
          const usage = { ...usageOf(job), output_tokens: 0 };
          return event("message_start", {
            message: { ...opening(job, model), content: [], ...none, usage },
          });
        },
        delta(output, cursor) {
          const news = advanced(job, output, cursor, false);
          if (news === null) return "";
          const { text } = news;
          if (output.message !== null) {
            const written = blocksOf(output).map(
              (block) => begin(emptied(block)) + deltasOf(block).map(delta).join(""),
            );
            return written.join("");
          }
          if (text === "") return "";
          const begun = open < 0 ? begin(textBlock("")) : "";
          return begun + delta({ type: "text_delta", text });
        },
        tail() {
          const [output] = job.outputs;
          const written = open < 0 ? begin(textBlock("")) + close() : close();
          const end = output === undefined ? {} : endOf(output);
          return `${written}${event("message_delta", { delta: end, usage: usageOf(job) })}${event("message_stop", {})}`;
        },
        done: "",
        failed: (error) => event("error", errorBody(error)),
      };
    },
  };
}

function event(type: string, fields: object): string {
  return `event: ${type}\ndata: ${JSON.stringify({ type, ...fields })}\n\n`;
}

function opening({ id }: Job, model: string) {
  return { id: `msg_${id}`, type: "message", role: "assistant", model };
}

/** Token counts. In Anthropic's API, `input_tokens` leaves out those read from the cache. */
function usageOf(job: Job) {
  const cached = job.promptTokensCached;
  return {
    input_tokens: job.promptTokens - (cached ?? 0),
    ...(cached !== null && { cache_read_input_tokens: cached }),
    output_tokens: job.completionTokens,
  };
}

/** The stop reason. A response with tool calls ends with `tool_use`, be it by a stop token or a stop text. */
function endOf({ finish, stopReason, message }: Output) {
  const calls = callsIn(message);
  if (finish === "abort") return { stop_reason: null, stop_sequence: null };
  if (finish === "length") return { stop_reason: "max_tokens", stop_sequence: null };
  if (calls.length > 0) return { stop_reason: "tool_use", stop_sequence: null };
  if (typeof stopReason !== "string") return { stop_reason: "end_turn", stop_sequence: null };
  return { stop_reason: "stop_sequence", stop_sequence: stopReason };
}

const textBlock = (text: string): Block => ({ type: "text", text });

function blocksOf({ message, pieces, request }: Output): Block[] {
  if (message === null) {
    const text = pieces.join("");
    return text === "" ? [] : [textBlock(text)];
  }
  const blocks: Block[] = [];
  const { reasoning, content, toolCalls } = message;
  if (reasoning) blocks.push({ type: "thinking", thinking: reasoning, signature: SIGNATURE });
  if (content) blocks.push(textBlock(content));
  for (const [i, { name, arguments: written }] of callsIn(message).entries()) {
    const id = fieldOf(toolCalls[i], "id") ?? `toolu_${request.spec.requestId}_${i}`;
    blocks.push({ type: "tool_use", id, name, input: inputOf(written) });
  }
  return blocks;
}

/** A call's arguments. If the model wrote no JSON object, the agent gets the text, and can answer with an error. */
function inputOf(written: string): unknown {
  try {
    const value: unknown = JSON.parse(written);
    return typeof value === "object" && value !== null ? value : { arguments: value };
  } catch {
    return { arguments: written };
  }
}

/** The block without its content, which its deltas bring. */
function emptied(block: Block): Block {
  if (block.type === "text") return textBlock("");
  if (block.type === "thinking") return { type: "thinking", thinking: "", signature: "" };
  return { ...block, input: {} };
}

function deltasOf({ type, text, thinking, input }: Block): object[] {
  if (type === "text") return [{ type: "text_delta", text }];
  if (type === "tool_use")
    return [{ type: "input_json_delta", partial_json: JSON.stringify(input) }];
  return [
    { type: "thinking_delta", thinking },
    { type: "signature_delta", signature: SIGNATURE },
  ];
}
