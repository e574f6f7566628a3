// Reads PROMPTS.jsonl and checks every line of it, here and nowhere else. Held are one line and the prompts read so far.

import * as v from "valibot";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import { chunksOf, linesOf, must, objectOf, show, tokensOf } from "../host/json-lines.ts";
import {
  type Chat,
  chatOf,
  messageList,
  TEMPLATE_ENTRIES,
  type TemplateFields,
  templateFieldOf,
} from "../server/openai/messages.ts";
import { unknownField } from "../server/openai/unknown-field.ts";

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
export const PROMPTS_MAX = 262_144;
export const GROUP_SIZE_MAX = 256;
const ID_CHARACTERS_MAX = 256;

const LineShape = v.strictObject(
  {
    id: v.pipe(
      v.string((issue) => must(issue.input, "be a string")),
      v.minLength(1, "is empty; it must name the group"),
      v.maxLength(
        ID_CHARACTERS_MAX,
        (issue) => `has ${issue.input.length} characters; at most ${ID_CHARACTERS_MAX} are allowed`,
      ),
    ),
    prompt: v.optional(
      v.pipe(
        v.string((issue) => must(issue.input, "be a string")),
        v.minLength(1, "is empty"),
        v.check(
          (text) => text.isWellFormed(),
          "holds half of a surrogate pair: it is not Unicode text",
        ),
      ),
    ),
    token_ids: v.optional(
      v.pipe(
        v.custom<unknown[]>(Array.isArray, (issue) =>
          must(issue.input, "be an array of token ids"),
        ),
        v.check((ids) => ids.length > 0, "is empty"),
      ),
    ),
    messages: v.optional(messageList),
    ...TEMPLATE_ENTRIES,
    n: v.optional(
      v.custom<number>(
        (n) => Number.isInteger(n) && Number(n) >= 1 && Number(n) <= GROUP_SIZE_MAX,
        (issue) => must(issue.input, `be a whole number between 1 and ${GROUP_SIZE_MAX}`),
      ),
    ),
  },
  "is missing",
);

/** Reads the whole file, or its first `limit` prompts. Throws AppError `usage`, `invalid_json` or `invalid_field`. */
export async function loadPrompts(path: string, options: PromptOptions): Promise<PromptLine[]> {
  const prompts: PromptLine[] = [];
  const lineOfId = new Map<string, number>();
  for await (const { line, where, text } of linesOf(path, chunksOf(path), LINE_BYTES_MAX)) {
    const prompt = parseLine(text, { where, line, vocabularySize: options.vocabularySize });
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
  text: string,
  options: { where: string; line: number; vocabularySize: number },
): PromptLine {
  const { where, line } = options;
  const result = v.safeParse(LineShape, objectOf(text, where), { abortEarly: true });
  if (!result.success) {
    const [issue] = result.issues;
    throw new InvalidFieldError({
      where,
      field: v.getDotPath(issue) ?? "line",
      problem: issue.expected === "never" ? unknownField(LineShape, issue.path) : issue.message,
    });
  }
  const { id, n = null } = result.output;
  return { line, id, prompt: promptOf(result.output, options), n };
}

const PROMPT_FIELDS = ["prompt", "token_ids", "messages"] as const;

function promptOf(
  fields: v.InferOutput<typeof LineShape>,
  { where, vocabularySize }: { where: string; vocabularySize: number },
): PromptLine["prompt"] {
  const [first, second] = PROMPT_FIELDS.filter((name) => fields[name] !== undefined);
  const { prompt, token_ids: ids, messages } = fields;
  if (second !== undefined) {
    const problem = `is given beside ${second}; a line has one of them`;
    throw new InvalidFieldError({ where, field: first ?? second, problem });
  }
  const orphan = messages === undefined ? templateFieldOf(fields) : null;
  if (orphan !== null) {
    const problem = "is given without messages; only a chat template reads it";
    throw new InvalidFieldError({ where, field: orphan, problem });
  }
  if (prompt !== undefined) return { kind: "text", text: prompt };
  if (ids !== undefined) {
    const place = { where, field: "token_ids" };
    return { kind: "token_ids", tokenIds: tokensOf(ids, place, vocabularySize - 1) };
  }
  if (messages !== undefined) return { kind: "chat", chat: chatIn({ ...fields, messages }, where) };
  const problem = "is missing, and so are token_ids and messages; a line has one of them";
  throw new InvalidFieldError({ where, field: "prompt", problem });
}

function chatIn(fields: TemplateFields, where: string): Chat {
  try {
    return chatOf(fields);
  } catch (error) {
    if (!(error instanceof InvalidFieldError)) throw error;
    throw new InvalidFieldError({ where, field: error.field, problem: error.problem });
  }
}
