// The form of answers of /v1/chat/completions, field by field vLLM's
// (vllm/entrypoints/openai/chat_completion/protocol.py).

import { type Answer, answerBy, escaped, idsOf, type News, promptIds } from "./answer.ts";
import type { ChatFields } from "./chat-fields.ts";
import { usageWanted } from "./common-fields.ts";
import type { Job } from "./job.ts";
import * as json from "./json.ts";
import { metaInfoJson } from "./meta-info.ts";
import type { ServedModel } from "./served-model.ts";
import { finishWithTools } from "./tool-calls.ts";

/** Fields of OpenAI's message that no model here fills. */
const NOT_THERE = `"refusal":null,"annotations":null,"audio":null,"function_call":null`;

/** The answer of a chat. `promptText` null: it was not requested, or is not known. */
export function chatAnswer(
  model: ServedModel,
  fields: ChatFields,
  promptText: string | null,
): Answer {
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
    finish: (output, message) => finishWithTools(output, message, fields),
    closing(job) {
      const [first] = job.outputs;
      const report = first === undefined ? null : job.promptReportOf(first);
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
function messageJson({ message, text }: News, noContent: string | null): string {
  if (message === null) return `"content":${JSON.stringify(text)},${NOT_THERE},"reasoning":null`;
  const content = JSON.stringify(message.content ?? noContent);
  return `"content":${content},${NOT_THERE},"tool_calls":${JSON.stringify(message.toolCalls)},"reasoning":${JSON.stringify(message.reasoning)}`;
}

function deltaJson({ message, text }: News): string {
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
