// POST /v1/completions: its schema, and its answers, field by field as vLLM writes them
// (vllm/entrypoints/openai/completion/protocol.py). Choices are in the order of the prompts.

import * as v from "valibot";
import type { EncodeOptions } from "../../text/text.ts";
import { type Exchange, invalid } from "../route.ts";
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
import {
  COMMON_ENTRIES,
  OPENAI_ENTRIES,
  truncated,
  usageWanted,
  withFormat,
} from "./common-fields.ts";
import * as f from "./fields.ts";
import * as json from "./json.ts";
import type { Output } from "./output.ts";
import type { DataPlane, Prepared } from "./plane.ts";
import { MAX_TOKENS_FIELD, SAMPLING_ENTRIES, TOP_LOGPROBS_FIELD } from "./sampling-fields.ts";

/** vLLM's, and OpenAI's. */
const TOKENS_MAX_DEFAULT = 16;
const PROMPTS_MAX = 16_384;

const prompts = v.union(
  [f.text, v.array(f.text), f.tokenList, v.array(f.tokenList)],
  f.isNot("a text, a list of texts, a list of token ids or a list of such lists"),
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
  echo: f.flag,
  suffix: f.unsupported("nothing is inserted between texts", ""),
  prompt_embeds: f.unsupported("prompts are tokens"),
  // rllm's gateway sends the later turns of a chat here as tokens, with all other fields of the chat.
  max_completion_tokens: MAX_TOKENS_FIELD,
  ...f.ignoring("top_logprobs", "chat_template_kwargs", "parallel_tool_calls"),
  ...f.ignoring("reasoning_effort", "include_reasoning"),
});

type Fields = v.InferOutput<typeof completionsRequest>;

export async function prepareCompletions(
  plane: DataPlane,
  exchange: Exchange,
  body: unknown,
): Promise<Prepared> {
  const fields = withFormat(f.checked(completionsRequest, body));
  const tokensMax = fields.max_tokens ?? fields.max_completion_tokens ?? TOKENS_MAX_DEFAULT;
  const prepared = plane.begin(exchange, fields, {
    params: fields,
    topLogprobs: fields.logprobs ?? 0,
    tokensMax,
    extraArgs: { ...fields.vllm_xargs },
  });
  if (fields.echo === true && !plane.hasText) throw invalid("echo", "needs the prompt's text");
  if (fields.echo === true && typeof fields.logprobs === "number") {
    const problem =
      "is true with logprobs: prompt_logprobs reports on the prompt, where the workers are vLLM servers";
    throw invalid("echo", problem);
  }
  const { truncate_prompt_tokens: keep = null, truncation_side: side } = fields;
  const addSpecial = fields.add_special_tokens ?? true;
  const encoding = plane.encoding(exchange, { addSpecial, truncates: keep !== null });
  const given = await promptsOf(fields.prompt, plane, encoding);
  const room = (plane.contextTokens ?? 0) - tokensMax;
  const prompts = given.map((tokens) => truncated(tokens, { keep, side, room }));
  return prepared(prompts, { wantsText: true, answer: answerOf(plane, fields) });
}

/** Tokens of all prompts. By the schema, a list holds texts only, or lists of tokens only. */
async function promptsOf(
  prompt: Fields["prompt"],
  plane: DataPlane,
  encoding: EncodeOptions,
): Promise<Int32Array[]> {
  const { tokensMax } = encoding;
  if (typeof prompt === "string") return await encodedTexts([prompt], ["prompt"], plane, encoding);
  if (prompt.length === 0) throw invalid("prompt", "is empty");
  if (f.isTokenList(prompt)) return [plane.promptOf(prompt, "prompt", tokensMax)];
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

function answerOf(plane: DataPlane, fields: Fields): Answer {
  const { logprobs: top = null, return_token_ids: returnsIds } = fields;
  const usage = usageWanted(fields);
  const names = fields.return_tokens_as_token_ids ? plane.numberedNames : plane.writtenNames;
  const model = JSON.stringify(plane.answeredName(fields.model));
  const openingOf = ({ id, created }: { id: string; created: number }) =>
    `"id":"cmpl-${escaped(id)}","object":"text_completion","created":${created},"model":${model}`;
  const echoOf = ({ prompt }: Output) =>
    fields.echo === true ? plane.text.decode(prompt, { skipSpecial: false }) : "";
  const promptOf = ({ prompt }: Output) => (returnsIds ? `[${prompt.join(",")}]` : "null");
  const logprobsOf = (span: json.Span | null, offset: number) =>
    top === null || span === null ? null : json.completionLogprobs(span, { names, top, offset });
  return {
    whole(job) {
      const choices = job.outputs.map((output) => {
        const span = spanOf(output);
        const empty = top === null ? "null" : json.NO_COMPLETION_LOGPROBS;
        const logprobs = logprobsOf(span, 0)?.json ?? empty;
        const ids = returnsIds ? idsOf(span) : "null";
        const report = json.reportJson(job.promptReportOf(output)?.logprobs);
        const text = job.messageOf(output)?.content ?? output.pieces.join("");
        const written = JSON.stringify(echoOf(output) + text);
        return `{"index":${output.index},"text":${written},"logprobs":${logprobs},${endOf(output, plane)},"token_ids":${ids},"prompt_logprobs":${report},"prompt_token_ids":${promptOf(output)},"routed_experts":${json.expertsJson(output.response)}}`;
      });
      return `{${openingOf(job)},"choices":[${choices.join(",")}],"service_tier":null,"system_fingerprint":null,"usage":${json.usageJson(job)},"kv_transfer_params":null}`;
    },
    stream(job) {
      const opening = `data: {${openingOf(job)},"choices":[`;
      return {
        delta(output, cursor) {
          const content = job.messageOf(output)?.content ?? null;
          // Its text comes when it is whole.
          if ((job.plan.parse ?? null) !== null && content === null) return "";
          const isFirst = cursor.tokens === 0 && cursor.pieces === 0;
          const news = advanced(output, cursor, top !== null || returnsIds === true);
          if (news === null) return "";
          const logprobs = logprobsOf(news.span, cursor.offset);
          cursor.offset = logprobs?.offset ?? cursor.offset;
          const echo = isFirst ? echoOf(output) : "";
          const ids = returnsIds ? idsOf(news.span) : "null";
          const prompt = isFirst ? promptOf(output) : "null";
          const rest = restOf(output, cursor, plane);
          const counts = usage.always ? `,"usage":${usageSoFar(output, cursor)}` : "";
          return `${opening}{"index":${output.index},"text":${JSON.stringify(echo + (content ?? news.piece))},"logprobs":${logprobs?.json ?? "null"},${rest.end},"prompt_token_ids":${prompt},"token_ids":${ids}${rest.experts}}]${counts}}\n\n`;
        },
        tail: () => (usage.atEnd ? `${opening}],"usage":${json.usageJson(job)}}\n\n` : ""),
      };
    },
  };
}
