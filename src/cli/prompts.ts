// Reads PROMPTS.jsonl and checks every line of it, here and nowhere else. Held are one line and the prompts read so far.

import * as v from "valibot";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { chunksOf, linesOf, objectOf, show } from "../host/json-lines.ts";
import { checked, text, wellFormed } from "../server/openai/fields.ts";
import { type Chat, chatOf } from "../server/openai/messages.ts";
import { GROUP_ENTRIES, givenPrompt } from "../server/rollouts/plan.ts";

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
    const { id, n = null, prompt, messages } = fields;
    const tokenIds = givenPrompt(fields, { text: { vocabularySize }, at: "" });
    if (tokenIds !== null) return { line, id, n, prompt: { kind: "token_ids", tokenIds } };
    if (!messages) return { line, id, n, prompt: { kind: "text", text: prompt ?? "" } };
    return { line, id, n, prompt: { kind: "chat", chat: chatOf({ ...fields, messages }) } };
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    throw new InvalidFieldError({ where, field: error.field, problem: error.problem });
  }
}
