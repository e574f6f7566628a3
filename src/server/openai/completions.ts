// POST /v1/completions: its schema, and its answers, field by field as vLLM writes them
// (vllm/entrypoints/openai/completion/protocol.py). Choices are in the order of the prompts.

import * as v from "valibot";
import type { EncodeOptions } from "../../text/text.ts";
import type { Exchange } from "../route.ts";
import {
  COMMON_ENTRIES,
  OPENAI_ENTRIES,
  truncated,
  type Usage,
  usageWanted,
  withFormat,
} from "./common-fields.ts";
import type { StreamView } from "./event-stream.ts";
import {
  checked,
  flag,
  ignored,
  isNot,
  isTokenList,
  text,
  tokenList,
  unsupported,
} from "./fields.ts";
import type { Job } from "./job.ts";
import {
  completionLogprobs,
  expertsJson,
  NO_COMPLETION_LOGPROBS,
  promptLogprobsJson,
  type TokenNames,
  tokensJson,
  usageJson,
  usageOf,
} from "./json.ts";
import { originOf } from "./origin.ts";
import type { Cursor, Output } from "./output.ts";
import type { Answer, DataPlane, Prepared } from "./plane.ts";
import {
  checkPromptReport,
  drawingOf,
  invalid,
  MAX_TOKENS_FIELD,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
} from "./sampling-fields.ts";

/** vLLM's, and OpenAI's. */
const TOKENS_MAX_DEFAULT = 16;
const PROMPTS_MAX = 16_384;

const prompts = v.union(
  [text, v.array(text), tokenList, v.array(tokenList)],
  isNot("a text, a list of texts, a list of token ids or a list of such lists"),
);

/** vLLM reads true as 1. */
const LOGPROBS_FIELD = v.pipe(
  v.nullish(v.any()),
  v.transform((value: unknown) => (value === true ? 1 : value === false ? null : value)),
  TOP_LOGPROBS_FIELD,
);

export const completionsRequest = v.strictObject({
  ...SAMPLING_ENTRIES,
  ...COMMON_ENTRIES,
  ...OPENAI_ENTRIES,
  prompt: prompts,
  logprobs: LOGPROBS_FIELD,
  echo: flag,
  suffix: unsupported("nothing is inserted between texts", ""),
  prompt_embeds: unsupported("prompts are tokens"),
  // rllm's gateway sends the later turns of a chat here as tokens, with all other fields of the chat.
  max_completion_tokens: MAX_TOKENS_FIELD,
  top_logprobs: ignored,
  chat_template_kwargs: ignored,
  parallel_tool_calls: ignored,
  reasoning_effort: ignored,
  include_reasoning: ignored,
});

type Fields = v.InferOutput<typeof completionsRequest>;

export async function prepareCompletions(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const fields = withFormat(checked(completionsRequest, body));
  plane.checkModel(fields.model);
  const tokensMax = fields.max_tokens ?? fields.max_completion_tokens ?? TOKENS_MAX_DEFAULT;
  const extraArgs = { ...fields.vllm_xargs };
  const origin = originOf(exchange.headers, fields, extraArgs);
  const own = { topLogprobs: fields.logprobs ?? 0, tokensMax, extraArgs };
  const drawing = drawingOf(fields, own, plane.samplingContext(""));
  checkPromptReport(fields.stream, fields);
  if (fields.echo === true && !plane.hasText) throw invalid("echo", "needs the prompt's text");
  if (fields.echo === true && typeof fields.logprobs === "number") {
    throw invalid(
      "echo",
      "is true with logprobs: prompt_logprobs reports on the prompt, where the workers are vLLM servers",
    );
  }
  const addSpecial = fields.add_special_tokens ?? true;
  const truncates = (fields.truncate_prompt_tokens ?? null) !== null;
  const encoding = plane.encoding(exchange, { addSpecial, truncates });
  const given = await promptsOf(fields.prompt, plane, encoding);
  const cut = given.map((tokens) => truncatedPrompt(tokens, fields, tokensMax, plane));
  const priority = fields.priority ?? 0;
  return {
    specs: plane.specsOf(cut, drawing, {
      ...{ tokensMax, clamps: false, origin, priority, model: fields.model },
    }),
    stops: drawing.stops,
    wantsText: true,
    isStream: fields.stream ?? false,
    requestId: fields.request_id ?? null,
    answer: new CompletionsAnswer(plane, fields, usageWanted(fields)),
  };
}

function truncatedPrompt(
  tokens: Int32Array,
  fields: Fields,
  tokensMax: number,
  plane: DataPlane,
): Int32Array {
  const { truncate_prompt_tokens: keep, truncation_side: side } = fields;
  const room = (plane.contextTokens ?? 0) - tokensMax;
  return Int32Array.from(truncated(tokens, { keep, side, room }));
}

/** By its schema, a list holds texts only, or lists of tokens only. */
async function promptsOf(
  prompt: Fields["prompt"],
  plane: DataPlane,
  encoding: EncodeOptions,
): Promise<Int32Array[]> {
  const { tokensMax } = encoding;
  if (typeof prompt === "string") return await encodedTexts([prompt], ["prompt"], plane, encoding);
  if (prompt.length === 0) throw invalid("prompt", "is empty");
  if (isTokenList(prompt)) return [plane.promptOf(prompt, "prompt", tokensMax)];
  if (prompt.length > PROMPTS_MAX) {
    throw invalid("prompt", `holds ${prompt.length} prompts, more than ${PROMPTS_MAX}`);
  }
  const texts = prompt.filter((one) => typeof one === "string");
  const fields = prompt.map((_, i) => `prompt.${i}`);
  if (texts.length > 0) return await encodedTexts(texts, fields, plane, encoding);
  const lists = prompt.filter((one) => typeof one !== "string");
  return lists.map((one, i) => plane.promptOf(one, `prompt.${i}`, tokensMax));
}

/** `fields` name the texts in errors. */
async function encodedTexts(
  texts: readonly string[],
  fields: readonly string[],
  plane: DataPlane,
  encoding: EncodeOptions,
): Promise<Int32Array[]> {
  const encoded = await plane.encoder.encode(texts, encoding);
  const empty = encoded.findIndex((tokens) => tokens.length === 0);
  if (empty >= 0) throw invalid(fields[empty] ?? "prompt", "holds no tokens");
  return encoded;
}

class CompletionsAnswer implements Answer {
  readonly #plane: DataPlane;
  readonly #model: string;
  readonly #usage: Usage;
  readonly #names: TokenNames;
  readonly #top: number | null;
  readonly #returnsIds: boolean;
  readonly #echoes: boolean;

  constructor(plane: DataPlane, fields: Fields, usage: Usage) {
    this.#plane = plane;
    this.#model = plane.answeredName(fields.model);
    this.#usage = usage;
    this.#names = fields.return_tokens_as_token_ids ? plane.numberedNames : plane.writtenNames;
    this.#top = fields.logprobs ?? null;
    this.#returnsIds = fields.return_token_ids ?? false;
    this.#echoes = fields.echo ?? false;
  }

  whole(job: Job): string {
    const choices = job.outputs.map((output) => this.#choice(job, output));
    const usage = usageOf(job);
    return `{${this.#opening(job)},"choices":[${choices.join(",")}],"service_tier":null,"system_fingerprint":null,"usage":${usage},"kv_transfer_params":null}`;
  }

  stream(job: Job): StreamView {
    const opening = `data: {${this.#opening(job)},"choices":[{"index":`;
    return {
      head: () => "",
      delta: (output, cursor) => {
        const content = job.messageOf(output)?.content ?? null;
        // Its text comes when it is whole.
        if ((job.plan.parse ?? null) !== null && content === null) return "";
        return this.#delta(opening, { output, cursor, content });
      },
      tail: () => {
        if (!this.#usage.atEnd) return "";
        const usage = usageOf(job);
        return `data: {${this.#opening(job)},"choices":[],"usage":${usage}}\n\n`;
      },
    };
  }

  #opening(job: Job): string {
    return `"id":"cmpl-${escaped(job.id)}","object":"text_completion","created":${job.created},"model":${JSON.stringify(this.#model)}`;
  }

  #choice(job: Job, output: Output): string {
    const span = spanOf(output, 0);
    const options = { names: this.#names, top: this.#top ?? 0, offset: 0 };
    let logprobs = "null";
    if (this.#top !== null) {
      logprobs = span === null ? NO_COMPLETION_LOGPROBS : completionLogprobs(span, options).json;
    }
    const prompt = this.#returnsIds ? `[${output.prompt.join(",")}]` : "null";
    const ids = this.#returnsIds ? idsOf(output, 0) : "null";
    const report = promptLogprobsJson(job.promptReportOf(output));
    const text = job.messageOf(output)?.content ?? output.pieces.join("");
    const written = JSON.stringify(this.#echo(output) + text);
    return `{"index":${output.index},"text":${written},"logprobs":${logprobs},${endOf(output, this.#plane)},"token_ids":${ids},"prompt_logprobs":${report},"prompt_token_ids":${prompt},"routed_experts":${expertsJson(output.response)}}`;
  }

  #delta(
    opening: string,
    about: { output: Output; cursor: Cursor; content: string | null },
  ): string {
    const { output, cursor, content } = about;
    const isFirst = cursor.tokens === 0 && cursor.pieces === 0;
    const news = advanced(output, cursor, this.#top !== null || this.#returnsIds);
    if (news === null) return "";
    const { span, piece } = news;
    let logprobs = "null";
    if (this.#top !== null && span !== null) {
      const options = { names: this.#names, top: this.#top, offset: cursor.offset };
      const made = completionLogprobs(span, options);
      logprobs = made.json;
      cursor.offset = made.offset;
    }
    const echo = isFirst ? this.#echo(output) : "";
    const ids = this.#returnsIds ? (span === null ? "[]" : tokensJson(span)) : "null";
    const prompt = this.#returnsIds && isFirst ? `[${output.prompt.join(",")}]` : "null";
    const end = cursor.isOver ? endOf(output, this.#plane) : NO_END;
    const usage = this.#usage.always
      ? `,"usage":${usageJson(output.prompt.length, cursor.tokens)}`
      : "";
    return `${opening}${output.index},"text":${JSON.stringify(echo + (content ?? piece))},"logprobs":${logprobs},${end},"prompt_token_ids":${prompt},"token_ids":${ids}${expertsAtEnd(output, cursor)}}]${usage}}\n\n`;
  }

  #echo(output: Output): string {
    return this.#echoes ? this.#plane.text.decode(output.prompt, { skipSpecial: false }) : "";
  }
}

export const NO_END = `"finish_reason":null,"stop_reason":null`;

/** Why a response ended, and under which weights its tokens were drawn. `finish`: takes the place of its own reason. */
export function endOf(output: Output, plane: DataPlane, finish: string | null = null): string {
  const versions = JSON.stringify(output.weightSpans(plane.version));
  return `"finish_reason":"${finish ?? output.finish}","stop_reason":${JSON.stringify(output.stopReason)},"weight_versions":${versions}`;
}

/** In a stream: with a response's last event, where engines report them. */
export function expertsAtEnd({ response }: Output, { isOver }: Cursor): string {
  const experts = isOver ? expertsJson(response) : "null";
  return experts === "null" ? "" : `,"routed_experts":${experts}`;
}

export function spanOf(output: Output, from: number) {
  const { response } = output;
  return response === null || output.tokens <= from ? null : { response, from, to: output.tokens };
}

export function idsOf(output: Output, from: number): string {
  const span = spanOf(output, from);
  return span === null ? "[]" : tokensJson(span);
}

/**
 * Moves the cursor over what is new; null: nothing to write. Tokens that show neither as text nor as ids wait
 * for the text that they become.
 */
export function advanced(
  output: Output,
  cursor: Cursor,
  showsTokens: boolean,
): { span: ReturnType<typeof spanOf>; piece: string } | null {
  const span = spanOf(output, cursor.tokens);
  const piece = output.pieces.slice(cursor.pieces).join("");
  const isOver = output.finish !== null;
  if (piece === "" && !isOver && (span === null || !showsTokens)) return null;
  cursor.tokens = output.tokens;
  cursor.pieces = output.pieces.length;
  cursor.isOver = isOver;
  return { span, piece };
}

/** Inside a JSON string. */
export function escaped(written: string): string {
  return JSON.stringify(written).slice(1, -1);
}
