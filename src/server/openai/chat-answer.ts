// Answers of /v1/chat/completions, whole and as a stream, field by field vLLM's
// (vllm/entrypoints/openai/chat_completion/protocol.py).

import {
  type Answer,
  advanced,
  endOf,
  escaped,
  idsOf,
  restOf,
  spanOf,
  usageSoFar,
} from "./answer.ts";
import type { ChatFields } from "./chat-fields.ts";
import { usageWanted } from "./common-fields.ts";
import type { Job } from "./job.ts";
import * as json from "./json.ts";
import { metaInfoJson } from "./meta-info.ts";
import type { Output } from "./output.ts";
import type { DataPlane } from "./plane.ts";
import { finishWithTools, type ParsedMessage } from "./tool-calls.ts";

/** Fields of OpenAI's message that no model here fills. */
const NOT_THERE = `"refusal":null,"annotations":null,"audio":null,"function_call":null`;

/** `promptText`: null: it is not known. */
export function chatAnswer(
  plane: DataPlane,
  fields: ChatFields,
  promptText: string | null,
): Answer {
  const { return_token_ids: returnsIds, return_meta_info: returnsMeta } = fields;
  const usage = usageWanted(fields);
  const top = fields.logprobs === true ? (fields.top_logprobs ?? 0) : null;
  const names = fields.return_tokens_as_token_ids ? plane.numberedNames : plane.writtenNames;
  const model = JSON.stringify(plane.answeredName(fields.model));
  const isNew = fields.continue_final_message !== true && (fields.add_generation_prompt ?? true);
  const lastRole = fields.messages.at(-1)?.role;
  const role = JSON.stringify(isNew ? "assistant" : (lastRole ?? "assistant"));
  const shownText = JSON.stringify(fields.return_prompt_text === true ? promptText : null);
  const openingOf = ({ id, created }: Job, object: string) =>
    `"id":"chatcmpl-${escaped(id)}","object":"${object}","created":${created},"model":${model}`;
  const promptOf = ({ plan }: Job) => {
    const ids = returnsIds ? `[${plan.specs[0]?.prompt.join(",") ?? ""}]` : "null";
    return `"prompt_token_ids":${ids},"prompt_text":${shownText}`;
  };
  const logprobsOf = (span: json.Span | null) => {
    if (top === null) return "null";
    return span === null ? `{"content":[]}` : json.chatLogprobs(span, names, top);
  };
  const finishOf = (output: Output, message: ParsedMessage | null) =>
    message === null ? null : finishWithTools(output, message, fields);
  const shown = { returnsLogprobs: top !== null, top: top ?? 0, writesTokens: false, support: 0 };
  const meta = { plane, ...shown, returnsExperts: fields.return_routed_experts ?? false };
  const metaOf = ({ id }: Job, output: Output) =>
    returnsMeta === true ? `,"meta_info":${metaInfoJson(output, { id, ...meta })}` : "";
  return {
    whole(job) {
      const choices = job.outputs.map((output) => {
        const span = spanOf(output);
        const ids = returnsIds ? idsOf(span) : "null";
        const message = job.messageOf(output);
        const end = endOf(output, plane, finishOf(output, message));
        // SGLang writes a message of tool calls alone with an empty text, which miles insists on.
        const written = messageJson(output, message, returnsMeta === true ? "" : null);
        return `{"index":${output.index},"message":{"role":${role},${written}},"logprobs":${logprobsOf(span)},${end},"token_ids":${ids},"routed_experts":${json.expertsJson(output.response)}${metaOf(job, output)}}`;
      });
      const [first] = job.outputs;
      const report = first === undefined ? null : job.promptReportOf(first);
      return `{${openingOf(job, "chat.completion")},"choices":[${choices.join(",")}],"service_tier":null,"system_fingerprint":null,"usage":${json.usageJson(job)},"prompt_logprobs":${json.reportJson(report?.logprobs)},${promptOf(job)},"kv_transfer_params":null}`;
    },
    stream(job) {
      const opening = `data: {${openingOf(job, "chat.completion.chunk")},"choices":[`;
      return {
        head() {
          const promptTokens = usage.always ? job.promptTokens : null;
          return headOf(job.outputs, { opening, role, prompt: promptOf(job), promptTokens });
        },
        delta(output, cursor) {
          const message = job.messageOf(output);
          // A parsed message comes whole: a parser may take back what a part of the text seemed to be.
          if ((job.plan.parse ?? null) !== null && message === null) return "";
          const news = advanced(output, cursor, top !== null || returnsIds === true);
          if (news === null) return "";
          const ids = returnsIds ? idsOf(news.span) : "null";
          const rest = restOf(output, cursor, plane, finishOf(output, message));
          const counts = usage.always ? `,"usage":${usageSoFar(output, cursor)}` : "";
          const delta =
            message === null ? `"content":${JSON.stringify(news.piece)}` : deltaOf(message);
          return `${opening}{"index":${output.index},"delta":{${delta}},"logprobs":${logprobsOf(news.span)},${rest.end},"token_ids":${ids}${rest.experts}}]${counts}}\n\n`;
        },
        tail: () => (usage.atEnd ? `${opening}],"usage":${json.usageJson(job)}}\n\n` : ""),
      };
    },
  };
}

/** vLLM opens with a chunk for each choice that holds the role. `promptTokens` null: without usage. */
function headOf(
  outputs: Job["outputs"],
  about: { opening: string; role: string; prompt: string; promptTokens: number | null },
): string {
  const { opening, role, prompt, promptTokens } = about;
  const none = { promptTokens: promptTokens ?? 0, completionTokens: 0, promptTokensCached: null };
  const usage = promptTokens === null ? "" : `,"usage":${json.usageJson(none)}`;
  const chunks = outputs.map(
    ({ index }) =>
      `${opening}{"index":${index},"delta":{"role":${role},"content":""},"logprobs":null,"finish_reason":null}],${prompt}${usage}}\n\n`,
  );
  return chunks.join("");
}

/** `noContent`: what stands for the content of a message that has none. */
function messageJson(
  output: Output,
  message: ParsedMessage | null,
  noContent: string | null,
): string {
  if (message === null) {
    return `"content":${JSON.stringify(output.pieces.join(""))},${NOT_THERE},"reasoning":null`;
  }
  const content = JSON.stringify(message.content ?? noContent);
  return `"content":${content},${NOT_THERE},"tool_calls":${JSON.stringify(message.toolCalls)},"reasoning":${JSON.stringify(message.reasoning)}`;
}

function deltaOf({ content, reasoning, toolCalls }: ParsedMessage): string {
  const fields = [`"content":${JSON.stringify(content)}`];
  if (reasoning !== null) fields.push(`"reasoning":${JSON.stringify(reasoning)}`);
  if (toolCalls.length > 0) {
    const calls = toolCalls.map((call, index) => ({ index, ...Object(call) }));
    fields.push(`"tool_calls":${JSON.stringify(calls)}`);
  }
  return fields.join(",");
}
