// Reads PROMPTS.jsonl, checks every line of it, and makes the groups of one iteration of them: the model's context and a
// worker's KV budget must hold each request whole. Bad input ends here.

import * as v from "valibot";
import { unreachable } from "../core/base/assert.ts";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { groupId } from "../core/base/ids.ts";
import { type GroupSpec, REQUESTS_MAX } from "../core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../core/request/request.ts";
import { outOfBounds, problemOf } from "../core/request/sampling-bounds.ts";
import { chunksOf, linesOf, objectOf, show } from "../host/json-lines.ts";
import { checked, text, wellFormed } from "../server/openai/fields.ts";
import { chatOf } from "../server/openai/messages.ts";
import { GROUP_ENTRIES, givenPrompt } from "../server/rollouts/plan.ts";
import type { Chat, Text } from "../text/text.ts";

export interface PromptLine {
  /** Line of the file; the first one is 1. */
  readonly line: number;
  readonly id: string;
  readonly prompt:
    | { readonly kind: "text"; readonly text: string }
    | { readonly kind: "chat"; readonly chat: Chat }
    | { readonly kind: "token_ids"; readonly tokenIds: Int32Array };
  /** Number of responses; null: not given. */
  readonly n: number | null;
  /** Number of them after which the others are given up; absent: all are wanted. */
  readonly finishFirst?: number;
}

export interface PromptOptions {
  /** Token ids are 0 <= id < vocabularySize. */
  readonly vocabularySize: number;
  /** Stop after this many prompts; null: read them all. */
  readonly limit: number | null;
}

/** A prompt of a million token ids, written in decimal, is 8 MB. */
export const LINE_BYTES_MAX = 16 * 1024 * 1024;
/** The request buffer's bound: more could not be run in one iteration. */
const PROMPTS_MAX = 262_144;

/** A group of /v1/rollouts is asked for in the same words. */
const LineShape = v.strictObject({
  ...GROUP_ENTRIES,
  prompt: v.nullish(v.pipe(text, v.minLength(1, "is empty"), wellFormed)),
});

/** Reads the whole file, or its first `limit` prompts. Throws AppError `usage`, `invalid_json` or `invalid_field`. */
export async function loadPrompts(path: string, options: PromptOptions): Promise<PromptLine[]> {
  const prompts: PromptLine[] = [];
  const lineOfId = new Map<string, number>();
  for await (const { line, where, text: source } of linesOf(path, chunksOf(path), LINE_BYTES_MAX)) {
    const prompt = parseLine(source, { where, line, vocabularySize: options.vocabularySize });
    const earlier = lineOfId.get(prompt.id);
    if (earlier !== undefined) {
      const problem = `is ${show(prompt.id)}, as on line ${earlier}; every id must be another one`;
      throw new InvalidFieldError({ where, field: "id", problem });
    }
    lineOfId.set(prompt.id, line);
    prompts.push(prompt);
    if (prompts.length === options.limit) break;
    if (prompts.length > PROMPTS_MAX) {
      throw new AppError("invalid_json", `${where}: more than ${PROMPTS_MAX} prompts`);
    }
  }
  if (prompts.length === 0) throw new AppError("invalid_json", `${path}: holds no prompt`);
  return prompts;
}

function parseLine(
  source: string,
  { where, line, vocabularySize }: { where: string; line: number; vocabularySize: number },
): PromptLine {
  const value = objectOf(source, where);
  try {
    const fields = checked(LineShape, value);
    const { id, n = null, finish_first: finishFirst, prompt, messages } = fields;
    const about = { line, id, n, ...(finishFirst != null && { finishFirst }) };
    const tokenIds = givenPrompt(fields, { text: { vocabularySize }, at: "" });
    if (tokenIds !== null) return { ...about, prompt: { kind: "token_ids", tokenIds } };
    if (!messages) return { ...about, prompt: { kind: "text", text: prompt ?? "" } };
    return {
      ...about,
      prompt: { kind: "chat", chat: chatOf({ ...fields, messages }, { source }) },
    };
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    throw new InvalidFieldError({ where, field: error.field, problem: error.problem });
  }
}

export interface JobOptions {
  /** Names the prompt file in messages. */
  readonly path: string;
  readonly groupSize: number;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly kvTokens: number;
  readonly contextTokens: number;
  readonly vocabularySize: number;
  readonly stopTokenIds: readonly number[];
  readonly text: Pick<Text, "encode" | "renderChat">;
}

export function groupsOf(prompts: readonly PromptLine[], options: JobOptions): GroupSpec[] {
  const { temperature, seed, maxTokens: tokensMax, stopTokenIds, vocabularySize } = options;
  const sampling = { temperature, seed, tokensMax, stopTokenIds, ...SAMPLING_DEFAULTS };
  const wrong = outOfBounds(sampling, { vocabularySize });
  if (wrong !== null) throw new AppError("invalid_config", `${wrong.field} ${problemOf(wrong)}`);
  let requests = 0;
  const groups = prompts.map((line) => {
    const tokens = tokensOf(line, options);
    checkSize(line, tokens.length, options);
    const size = line.n ?? options.groupSize;
    requests += size;
    const { finishFirst = size } = line;
    if (finishFirst > size) {
      const where = `${options.path}:${line.line}`;
      const problem = `is ${finishFirst} of ${size} responses`;
      throw new InvalidFieldError({ where, field: "finish_first", problem });
    }
    return { groupId: groupId(line.id), prompt: tokens, size, sampling, finishFirst };
  });
  if (requests > REQUESTS_MAX) {
    const problem = `${requests} responses are asked for; an iteration holds at most ${REQUESTS_MAX}`;
    throw new AppError("invalid_config", `${options.path}: ${problem}`);
  }
  return groups;
}

/** A template writes the special tokens itself; a text has those that its author wrote. */
function tokensOf({ line, id, prompt }: PromptLine, { path, text }: JobOptions): Int32Array {
  switch (prompt.kind) {
    case "token_ids":
      return prompt.tokenIds;
    case "text":
      return text.encode(prompt.text, { addSpecial: false });
    case "chat":
      try {
        return text.encode(text.renderChat(prompt.chat), { addSpecial: false });
      } catch (error) {
        if (!(error instanceof InvalidFieldError)) throw error;
        const { field, problem } = error;
        throw new InvalidFieldError({ where: `${path}:${line}: prompt "${id}"`, field, problem });
      }
    default:
      return unreachable(prompt);
  }
}

function checkSize(line: PromptLine, promptTokens: number, options: JobOptions): void {
  const where = `${options.path}:${line.line}: prompt "${line.id}"`;
  const total = promptTokens + options.maxTokens;
  const sum = `has ${promptTokens} tokens; with --max-tokens ${options.maxTokens} that is ${total}`;
  if (promptTokens === 0) throw new AppError("invalid_field", `${where} has no tokens`);
  if (total > options.contextTokens) {
    throw new AppError(
      "context_length_exceeded",
      `${where} ${sum}, more than the model's context of ${options.contextTokens}`,
    );
  }
  if (total > options.kvTokens) {
    throw new AppError(
      "kv_budget_too_small",
      `${where} ${sum}, more than a worker's whole KV budget, --kv-tokens ${options.kvTokens}`,
    );
  }
}
