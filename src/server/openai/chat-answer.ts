// Answers of /v1/chat/completions, whole and as a stream, field by field vLLM's
// (vllm/entrypoints/openai/chat_completion/protocol.py).

import type { Usage } from "./common-fields.ts";
import { advanced, endOf, escaped, expertsAtEnd, idsOf, NO_END, spanOf } from "./completions.ts";
import type { StreamView } from "./event-stream.ts";
import type { Job } from "./job.ts";
import {
  chatLogprobs,
  expertsJson,
  promptLogprobsJson,
  type TokenNames,
  tokensJson,
  usageJson,
  usageOf,
} from "./json.ts";
import { metaInfoJson } from "./meta-info.ts";
import type { Cursor, Output } from "./output.ts";
import type { Answer, DataPlane } from "./plane.ts";
import { finishWithTools, type ParsedMessage, type ToolFields } from "./tool-calls.ts";

/** The fields of a request that its answer depends on. */
export interface ChatFields extends ToolFields {
  readonly model?: string | null | undefined;
  readonly messages: readonly { readonly role: string }[];
  readonly logprobs?: boolean | null | undefined;
  readonly top_logprobs?: number | null | undefined;
  readonly return_tokens_as_token_ids?: boolean | null | undefined;
  readonly return_token_ids?: boolean | null | undefined;
  readonly return_prompt_text?: boolean | null | undefined;
  readonly return_meta_info?: boolean | null | undefined;
  readonly return_routed_experts?: boolean | null | undefined;
  readonly continue_final_message?: boolean | null | undefined;
  readonly add_generation_prompt?: boolean | null | undefined;
}

/** Fields of OpenAI's message that no model here fills. */
const NOT_THERE = `"refusal":null,"annotations":null,"audio":null,"function_call":null`;

export class ChatAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #model: string;
  readonly #usage: Usage;
  readonly #names: TokenNames;
  readonly #top: number | null;
  readonly #returnsIds: boolean;
  readonly #role: string;
  readonly #promptText: string | null;
  readonly #tools: ToolFields;
  readonly #returnsMeta: boolean;
  readonly #returnsExperts: boolean;

  constructor(
    plane: DataPlane,
    fields: ChatFields,
    about: { usage: Usage; promptText: string | null },
  ) {
    this.#plane = plane;
    this.#model = plane.answeredName(fields.model);
    this.#usage = about.usage;
    this.#tools = fields;
    this.#names = fields.return_tokens_as_token_ids ? plane.numberedNames : plane.writtenNames;
    this.#top = fields.logprobs === true ? (fields.top_logprobs ?? 0) : null;
    this.#returnsIds = fields.return_token_ids ?? false;
    const continues = fields.continue_final_message === true;
    const isNew = !continues && (fields.add_generation_prompt ?? true);
    this.#role = isNew ? "assistant" : (fields.messages.at(-1)?.role ?? "assistant");
    this.#returnsMeta = fields.return_meta_info ?? false;
    this.#returnsExperts = fields.return_routed_experts ?? false;
    this.#promptText = fields.return_prompt_text === true ? about.promptText : null;
  }

  whole(job: Job): string {
    const choices = job.outputs.map((output) => this.#choice(job, output));
    const usage = usageOf(job);
    const [first] = job.outputs;
    const prompt = promptLogprobsJson(first === undefined ? null : job.promptReportOf(first));
    return `{${this.#opening(job, "chat.completion")},"choices":[${choices.join(",")}],"service_tier":null,"system_fingerprint":null,"usage":${usage},"prompt_logprobs":${prompt},${this.#promptJson(job)},"kv_transfer_params":null}`;
  }

  stream(job: Job): StreamView {
    const opening = `data: {${this.#opening(job, "chat.completion.chunk")},"choices":[`;
    return {
      head: () => this.#head(job, opening),
      delta: (output, cursor) => this.#delta(job, { opening, output, cursor }),
      tail: () => {
        if (!this.#usage.atEnd) return "";
        return `${opening}],"usage":${usageOf(job)}}\n\n`;
      },
    };
  }

  #opening(job: Job, object: string): string {
    return `"id":"chatcmpl-${escaped(job.id)}","object":"${object}","created":${job.created},"model":${JSON.stringify(this.#model)}`;
  }

  #promptJson(job: Job): string {
    const [spec] = job.plan.specs;
    const ids = this.#returnsIds ? `[${spec?.prompt.join(",") ?? ""}]` : "null";
    return `"prompt_token_ids":${ids},"prompt_text":${JSON.stringify(this.#promptText)}`;
  }

  #choice(job: Job, output: Output): string {
    const span = spanOf(output, 0);
    const logprobs = this.#logprobs(span);
    const ids = this.#returnsIds ? idsOf(output, 0) : "null";
    const message = job.messageOf(output);
    const written =
      message === null
        ? `"content":${JSON.stringify(output.pieces.join(""))},${NOT_THERE},"reasoning":null`
        : `"content":${JSON.stringify(this.#contentOf(message))},${NOT_THERE},"tool_calls":${JSON.stringify(message.toolCalls)},"reasoning":${JSON.stringify(message.reasoning)}`;
    const end = this.#endOf(output, message);
    return `{"index":${output.index},"message":{"role":${JSON.stringify(this.#role)},${written}},"logprobs":${logprobs},${end},"token_ids":${ids},"routed_experts":${expertsJson(output.response)}${this.#meta(job, output)}}`;
  }

  /** SGLang writes a message of tool calls alone with an empty text, which miles insists on. */
  #contentOf({ content }: ParsedMessage): string | null {
    return content ?? (this.#returnsMeta ? "" : null);
  }

  #meta(job: Job, output: Output): string {
    if (!this.#returnsMeta) return "";
    const meta = metaInfoJson(output, {
      id: job.id,
      plane: this.#plane,
      returnsLogprobs: this.#top !== null,
      top: this.#top ?? 0,
      writesTokens: false,
      support: 0,
      returnsExperts: this.#returnsExperts,
    });
    return `,"meta_info":${meta}`;
  }

  #endOf(output: Output, message: ParsedMessage | null): string {
    const finish = message === null ? null : finishWithTools(output, message, this.#tools);
    return endOf(output, this.#plane, finish);
  }

  /** vLLM opens with a chunk for each choice that holds the role. */
  #head(job: Job, opening: string): string {
    const usage = this.#usage.always ? `,"usage":${usageJson(job.promptTokens, 0)}` : "";
    const prompt = this.#promptJson(job);
    const role = JSON.stringify(this.#role);
    return job.outputs
      .map(
        ({ index }) =>
          `${opening}{"index":${index},"delta":{"role":${role},"content":""},"logprobs":null,"finish_reason":null}],${prompt}${usage}}\n\n`,
      )
      .join("");
  }

  #delta(job: Job, about: { opening: string; output: Output; cursor: Cursor }): string {
    const { opening, output, cursor } = about;
    const message = job.messageOf(output);
    // A parsed message comes whole: a parser may take back what a part of the text seemed to be.
    if ((job.plan.parse ?? null) !== null && message === null) return "";
    const news = advanced(output, cursor, this.#top !== null || this.#returnsIds);
    if (news === null) return "";
    const { span, piece } = news;
    const ids = this.#returnsIds ? (span === null ? "[]" : tokensJson(span)) : "null";
    const end = cursor.isOver ? this.#endOf(output, message) : NO_END;
    const usage = this.#usage.always
      ? `,"usage":${usageJson(output.prompt.length, cursor.tokens)}`
      : "";
    const delta = message === null ? `"content":${JSON.stringify(piece)}` : deltaOf(message);
    return `${opening}{"index":${output.index},"delta":{${delta}},"logprobs":${this.#logprobs(span)},${end},"token_ids":${ids}${expertsAtEnd(output, cursor)}}]${usage}}\n\n`;
  }

  #logprobs(span: ReturnType<typeof spanOf>): string {
    if (this.#top === null) return "null";
    return span === null ? `{"content":[]}` : chatLogprobs(span, this.#names, this.#top);
  }
}

/** Streams number the tool calls, as their parts may come apart. */
function deltaOf({ content, reasoning, toolCalls }: ParsedMessage): string {
  const fields = [`"content":${JSON.stringify(content)}`];
  if (reasoning !== null) fields.push(`"reasoning":${JSON.stringify(reasoning)}`);
  if (toolCalls.length > 0) {
    const calls = toolCalls.map((call, index) => ({ index, ...Object(call) }));
    fields.push(`"tool_calls":${JSON.stringify(calls)}`);
  }
  return fields.join(",");
}
