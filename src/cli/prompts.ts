// Reads PROMPTS.jsonl and checks every line of it, here and nowhere else. The file is streamed: what is
// held at a time is one line, whose length is bounded, and the prompts read so far. A fault names the file,
// the line, the field, its value and the allowed values; nothing is guessed or repaired.

import { createReadStream } from "node:fs";
import * as v from "valibot";
import { AppError, fileProblem, InvalidFieldError } from "../core/base/errors.ts";
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

const NEWLINE = 0x0a;

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
  for await (const { line, text } of readLines(path)) {
    const where = `${path}:${line}`;
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
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new AppError("invalid_json", `${where}: is not valid JSON (${reason})`, { cause: error });
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    const problem = `holds ${show(value)}; every line must be one JSON object`;
    throw new AppError("invalid_json", `${where}: ${problem}`);
  }
  const result = v.safeParse(LineShape, value, { abortEarly: true });
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
    return { kind: "token_ids", tokenIds: checkTokens(ids, where, vocabularySize) };
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

function checkTokens(ids: readonly unknown[], where: string, vocabularySize: number): Int32Array {
  const tokens = new Int32Array(ids.length);
  for (const [i, id] of ids.entries()) {
    if (typeof id !== "number" || !Number.isInteger(id) || id < 0 || id >= vocabularySize) {
      const bound = `be a whole number between 0 and ${vocabularySize - 1}, the model's vocabulary`;
      throw new InvalidFieldError({ where, field: `token_ids[${i}]`, problem: must(id, bound) });
    }
    tokens[i] = id;
  }
  return tokens;
}

/** Yields the lines that are not blank. Lines end with LF or CRLF, and with nothing else. */
async function* readLines(path: string): AsyncGenerator<{ line: number; text: string }> {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: false });
  let pieces: Buffer[] = [];
  let pieceBytes = 0;
  let line = 1;
  const take = (end: Buffer): string => {
    const bytes = pieces.length === 0 ? end : Buffer.concat([...pieces, end]);
    pieces = [];
    pieceBytes = 0;
    try {
      return decoder.decode(bytes);
    } catch (error) {
      throw new AppError("invalid_json", `${path}:${line}: is not UTF-8`, { cause: error });
    }
  };
  const grow = (bytes: number): void => {
    pieceBytes += bytes;
    if (pieceBytes <= LINE_BYTES_MAX) return;
    throw new AppError("invalid_json", `${path}:${line}: is longer than ${LINE_BYTES_MAX} bytes`);
  };
  for await (const chunk of readChunks(path)) {
    let from = 0;
    for (let to = chunk.indexOf(NEWLINE); to >= 0; to = chunk.indexOf(NEWLINE, from)) {
      grow(to - from);
      const text = take(chunk.subarray(from, to));
      if (text.trim() !== "") yield { line, text };
      line += 1;
      from = to + 1;
    }
    grow(chunk.length - from);
    if (from < chunk.length) pieces.push(chunk.subarray(from));
  }
  const text = take(Buffer.alloc(0));
  if (text.trim() !== "") yield { line, text };
}

async function* readChunks(path: string): AsyncGenerator<Buffer> {
  const stream = createReadStream(path);
  try {
    for await (const chunk of stream) yield Buffer.isBuffer(chunk) ? chunk : Buffer.from(chunk);
  } catch (error) {
    const message = `cannot read the prompts: ${path}: ${fileProblem(error)}`;
    throw new AppError("usage", message, { cause: error });
  } finally {
    stream.destroy();
  }
}

function must(value: unknown, bound: string): string {
  return value === undefined ? "is missing" : `is ${show(value)}; it must ${bound}`;
}

/** A value as it may stand in a message: short, on one line, no control characters. */
function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value);
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}
