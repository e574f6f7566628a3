// Turns prompt lines into the groups of one iteration, and checks that every request can be served:
// the model's context and a worker's KV budget must hold it whole. Bad input ends here.

import { unreachable } from "../core/base/assert.ts";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { groupId } from "../core/base/ids.ts";
import { type GroupSpec, REQUESTS_MAX } from "../core/request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../core/request/request.ts";
import { outOfBounds, problemOf } from "../core/request/sampling-bounds.ts";
import type { Text } from "../text/text.ts";
import type { PromptLine } from "./prompts.ts";

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
    return { groupId: groupId(line.id), prompt: tokens, size, sampling };
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
        const { messages, options } = prompt.chat;
        return text.encode(text.renderChat(messages, options), { addSpecial: false });
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
