// POST /v1/chat/completions and its two relatives: /tokens takes the prompt as tokens beside the messages
// (prime-rl), /render answers with the request to /inference/v1/generate that the chat amounts to. Answers
// are field by field vLLM's (vllm/entrypoints/openai/chat_completion/protocol.py).

import * as v from "valibot";
import type { EncodedChat, EncodeOptions } from "../../text/text.ts";
import type { Exchange } from "../route.ts";
import {
  COMMON_ENTRIES,
  OPENAI_ENTRIES,
  truncated,
  type Usage,
  usageWanted,
  withFormat,
} from "./common-fields.ts";
import { advanced, endOf, escaped, idsOf, NO_END, spanOf } from "./completions.ts";
import type { StreamView } from "./event-stream.ts";
import { checked, flag, ignored, tokenList, unsupported } from "./fields.ts";
import type { Job } from "./job.ts";
import {
  alternativesFor,
  chatLogprobs,
  type TokenNames,
  tokensJson,
  usageJson,
  usageOf,
} from "./json.ts";
import { chatOf, messageList, TEMPLATE_ENTRIES, type TemplateFields } from "./messages.ts";
import { originOf } from "./origin.ts";
import type { Cursor, Output } from "./output.ts";
import type { Answer, DataPlane, Prepared } from "./plane.ts";
import {
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "./sampling-fields.ts";

const PARSER = "no worker parses tool calls; send tool_choice: none and parse the text";

const CHAT_ENTRIES = {
  ...SAMPLING_ENTRIES,
  ...COMMON_ENTRIES,
  ...OPENAI_ENTRIES,
  ...TEMPLATE_ENTRIES,
  messages: messageList,
  max_completion_tokens: MAX_TOKENS_FIELD,
  logprobs: flag,
  top_logprobs: TOP_LOGPROBS_FIELD,
  tool_choice: unsupported(PARSER, "none"),
  return_prompt_text: flag,
  echo: unsupported("only the new message is answered", false),
  // Without tools and parsers they mean nothing.
  parallel_tool_calls: ignored,
  include_reasoning: ignored,
  modalities: unsupported("answers are text"),
  audio: unsupported("answers are text"),
  functions: unsupported("tools takes its place"),
  function_call: unsupported("tool_choice takes its place"),
} as const;

export const chatRequest = v.strictObject(CHAT_ENTRIES);
export const chatTokensRequest = v.strictObject({ ...CHAT_ENTRIES, tokens: tokenList });

type Fields = v.InferOutput<typeof chatRequest>;

interface ChatPlan {
  readonly prepared: Prepared;
  readonly fields: Fields;
  readonly prompt: Int32Array;
}

export async function prepareChat(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  return (await planChat(plane, exchange, checked(chatRequest, body), null)).prepared;
}

export async function prepareChatTokens(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const { tokens, ...fields } = checked(chatTokensRequest, body);
  const truncates = (fields.truncate_prompt_tokens ?? null) !== null;
  const prompt = plane.promptOf(tokens, "tokens", truncates ? null : plane.contextTokens);
  return (await planChat(plane, exchange, fields, prompt)).prepared;
}

/** What /inference/v1/generate would have to be sent. */
export async function renderChatRequest(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<object> {
  const given = checked(chatRequest, body);
  const { prepared, fields, prompt } = await planChat(plane, exchange, given, null);
  const sampling = withFormat(fields);
  const params: Record<string, unknown> = {};
  for (const name of Object.keys(SAMPLING_ENTRIES) as (keyof typeof SAMPLING_ENTRIES)[]) {
    if (sampling[name] !== undefined && sampling[name] !== null) params[name] = sampling[name];
  }
  params.max_tokens = prepared.specs[0]?.sampling.tokensMax;
  if (fields.logprobs === true) params.logprobs = fields.top_logprobs ?? 0;
  if (fields.vllm_xargs !== undefined && fields.vllm_xargs !== null) {
    params.extra_args = fields.vllm_xargs;
  }
  return {
    request_id: `chatcmpl-${fields.request_id ?? crypto.randomUUID().replaceAll("-", "")}`,
    token_ids: [...prompt],
    features: null,
    sampling_params: params,
    model: fields.model ?? plane.modelName,
    stream: fields.stream ?? false,
    stream_options: fields.stream_options ?? null,
    cache_salt: fields.cache_salt ?? null,
    priority: fields.priority ?? 0,
    kv_transfer_params: null,
  };
}

/** The prompt that messages make, as text and as tokens. @throws InvalidFieldError; AppError as Encoder.encodeChat. */
export async function encodeMessages(
  plane: DataPlane,
  fields: TemplateFields,
  encoding: EncodeOptions,
): Promise<EncodedChat> {
  const { messages, options } = chatOf(fields);
  return await plane.encoder.encodeChat(messages, options, encoding);
}

/** `tokens`: of the prompt, where the client gave them; null: the messages make it. */
async function planChat(
  plane: DataPlane,
  exchange: Exchange,
  given: Fields,
  tokens: Int32Array | null,
): Promise<ChatPlan> {
  const fields = withFormat(given);
  plane.checkModel(fields.model);
  if (fields.tools && fields.tools.length > 0 && fields.tool_choice !== "none") {
    throw invalid("tool_choice", `is "auto" by default when there are tools: ${PARSER}`);
  }
  if (typeof fields.top_logprobs === "number" && fields.top_logprobs > 0 && !fields.logprobs) {
    throw invalid("top_logprobs", `is ${fields.top_logprobs}, but logprobs is not true`);
  }
  const tokensMax = fields.max_completion_tokens ?? fields.max_tokens ?? null;
  const extraArgs = { ...fields.vllm_xargs };
  const origin = originOf(exchange.headers, fields, extraArgs);
  const topLogprobs = alternativesFor(fields.top_logprobs ?? 0);
  const own = { topLogprobs, tokensMax, extraArgs };
  const drawing = drawingOf(fields, own, plane.samplingContext(""));
  const { truncate_prompt_tokens: keep, truncation_side: side } = fields;
  const addSpecial = fields.add_special_tokens ?? false;
  const encoding = plane.encoding(exchange, { addSpecial, truncates: (keep ?? null) !== null });
  const written = tokens === null ? await encodeMessages(plane, fields, encoding) : null;
  const whole = tokens ?? written?.tokens ?? new Int32Array(0);
  const room = (plane.contextTokens ?? 0) - (tokensMax ?? 0);
  const prompt = Int32Array.from(truncated(whole, { keep, side, room }));
  if (prompt.length === 0) throw invalid("messages", "make a prompt without tokens");
  const about = {
    tokensMax,
    clamps: false,
    origin,
    priority: fields.priority ?? 0,
    model: fields.model,
  };
  const prepared = {
    specs: plane.specsOf([prompt], drawing, about),
    stops: drawing.stops,
    wantsText: true,
    isStream: fields.stream ?? false,
    requestId: fields.request_id ?? null,
    answer: new ChatAnswer(plane, fields, {
      usage: usageWanted(fields),
      promptText: written?.text ?? null,
    }),
  };
  return { prepared, fields, prompt };
}

class ChatAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #model: string;
  readonly #usage: Usage;
  readonly #names: TokenNames;
  readonly #top: number | null;
  readonly #returnsIds: boolean;
  readonly #role: string;
  readonly #promptText: string | null;

  constructor(
    plane: DataPlane,
    fields: Fields,
    about: { usage: Usage; promptText: string | null },
  ) {
    this.#plane = plane;
    this.#model = plane.answeredName(fields.model);
    this.#usage = about.usage;
    this.#names = fields.return_tokens_as_token_ids ? plane.numberedNames : plane.writtenNames;
    this.#top = fields.logprobs === true ? (fields.top_logprobs ?? 0) : null;
    this.#returnsIds = fields.return_token_ids ?? false;
    const continues = fields.continue_final_message === true;
    const isNew = !continues && (fields.add_generation_prompt ?? true);
    this.#role = isNew ? "assistant" : (fields.messages.at(-1)?.role ?? "assistant");
    this.#promptText = fields.return_prompt_text === true ? about.promptText : null;
  }

  whole(job: Job): string {
    const choices = job.outputs.map((output) => this.#choice(output));
    const usage = usageOf(job);
    return `{${this.#opening(job, "chat.completion")},"choices":[${choices.join(",")}],"service_tier":null,"system_fingerprint":null,"usage":${usage},"prompt_logprobs":null,${this.#promptJson(job)},"kv_transfer_params":null}`;
  }

  stream(job: Job): StreamView {
    const opening = `data: {${this.#opening(job, "chat.completion.chunk")},"choices":[`;
    return {
      head: () => this.#head(job, opening),
      delta: (output, cursor) => this.#delta(opening, output, cursor),
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

  #choice(output: Output): string {
    const span = spanOf(output, 0);
    const logprobs = this.#logprobs(span);
    const content = JSON.stringify(output.pieces.join(""));
    const ids = this.#returnsIds ? idsOf(output, 0) : "null";
    return `{"index":${output.index},"message":{"role":${JSON.stringify(this.#role)},"content":${content},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":${logprobs},${endOf(output, this.#plane)},"token_ids":${ids},"routed_experts":null}`;
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

  #delta(opening: string, output: Output, cursor: Cursor): string {
    const news = advanced(output, cursor, this.#top !== null || this.#returnsIds);
    if (news === null) return "";
    const { span, piece } = news;
    const ids = this.#returnsIds ? (span === null ? "[]" : tokensJson(span)) : "null";
    const end = cursor.isOver ? endOf(output, this.#plane) : NO_END;
    const usage = this.#usage.always
      ? `,"usage":${usageJson(output.prompt.length, cursor.tokens)}`
      : "";
    return `${opening}{"index":${output.index},"delta":{"content":${JSON.stringify(piece)}},"logprobs":${this.#logprobs(span)},${end},"token_ids":${ids}}]${usage}}\n\n`;
  }

  #logprobs(span: ReturnType<typeof spanOf>): string {
    if (this.#top === null) return "null";
    return span === null ? `{"content":[]}` : chatLogprobs(span, this.#names, this.#top);
  }
}
