// POST /v1/completions: its schema, and its answers, field by field as vLLM writes them
// (vllm/entrypoints/openai/completion/protocol.py). Choices are in the order of the prompts.

import * as v from "valibot";
import { invalid } from "../route.ts";
import { type Answer, answerBy, escaped, idsOf, type News, promptIds } from "./answer.ts";
import * as f from "./fields.ts";
import * as json from "./json.ts";
import type { ParsedRequest, Prompts } from "./plan.ts";
import {
  COMMON_ENTRIES,
  MAX_TOKENS_FIELD,
  OPENAI_ENTRIES,
  SAMPLING_ENTRIES,
  TOP_LOGPROBS_FIELD,
  usageWanted,
  withFormat,
} from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";

/** Default of max_tokens in vLLM and OpenAI's API. */
const TOKENS_MAX_DEFAULT = 16;
const PROMPTS_MAX = 16_384;

const prompts = v.union(
  [f.text, v.array(f.text), f.tokenList, v.array(f.tokenList)],
  f.isNot("a text, a list of texts, a list of token ids or a list of such lists"),
);

/** Number of alternatives; as in vLLM, true means 1. */
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

export function parseCompletions(body: Fields): ParsedRequest {
  const fields = withFormat(body);
  const { echo, logprobs } = fields;
  if (echo === true && typeof logprobs === "number") {
    const problem =
      "is true with logprobs: prompt_logprobs reports on the prompt, where the workers are vLLM servers";
    throw invalid("echo", problem);
  }
  const part = {
    params: fields,
    topLogprobs: logprobs ?? 0,
    tokensMax: fields.max_tokens ?? fields.max_completion_tokens ?? TOKENS_MAX_DEFAULT,
    extraArgs: fields.vllm_xargs ?? {},
  };
  return {
    fields,
    parts: [part],
    wantsText: true,
    prompts: promptsIn(fields.prompt, fields.add_special_tokens ?? true),
    textField: echo === true ? "echo" : undefined,
    answer: (model) => answerOf(model, fields),
  };
}

/** The prompts of the field; by the schema, a list holds only texts, or only lists of tokens. */
function promptsIn(prompt: Fields["prompt"], addSpecial: boolean): Prompts {
  if (typeof prompt === "string") {
    return { kind: "texts", texts: [prompt], names: () => "prompt", addSpecial };
  }
  if (prompt.length === 0) throw invalid("prompt", "is empty");
  if (f.isTokenList(prompt)) return { kind: "tokens", lists: [prompt], names: () => "prompt" };
  if (prompt.length > PROMPTS_MAX) {
    throw invalid("prompt", `holds ${prompt.length} prompts, more than ${PROMPTS_MAX}`);
  }
  const texts = prompt.filter((one) => typeof one === "string");
  const names = (index: number) => `prompt.${index}`;
  if (texts.length > 0) return { kind: "texts", texts, names, addSpecial };
  return { kind: "tokens", lists: prompt.filter((one) => typeof one !== "string"), names };
}

function answerOf(model: ServedModel, fields: Fields): Answer {
  const { logprobs: top = null, return_token_ids: returnsIds, echo } = fields;
  const names = fields.return_tokens_as_token_ids ? model.numberedNames : model.writtenNames;
  const named = JSON.stringify(model.answeredName(fields.model));
  const logprobsOf = ({ span, cursor, isWhole }: News): string => {
    if (top === null) return "null";
    if (span === null) return isWhole ? json.NO_COMPLETION_LOGPROBS : "null";
    const written = json.completionLogprobs(span, { names, top, offset: cursor.offset });
    cursor.offset = written.offset;
    return written.json;
  };
  return answerBy({
    model,
    usage: usageWanted(fields),
    showsTokens: top !== null || returnsIds === true,
    opening: ({ id, created }) =>
      `"id":"cmpl-${escaped(id)}","object":"text_completion","created":${created},"model":${named}`,
    choice(news) {
      const { output, isFirst, isWhole } = news;
      const echoed = isFirst && echo === true;
      const before = echoed ? model.text.decode(output.prompt, { skipSpecial: false }) : "";
      const text = JSON.stringify(before + (output.message?.content ?? news.text));
      const ids = returnsIds ? idsOf(news.span) : "null";
      const prompt = isFirst && returnsIds ? promptIds(output) : "null";
      const choice = `"text":${text},"logprobs":${logprobsOf(news)},"token_ids":${ids},"prompt_token_ids":${prompt}`;
      if (!isWhole) return choice;
      return `${choice},"prompt_logprobs":${json.reportJson(output.promptReport?.logprobs)}`;
    },
    closing: () => `"service_tier":null,"system_fingerprint":null,"kv_transfer_params":null`,
  });
}
