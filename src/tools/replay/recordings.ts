// Recorded responses by group, as files hold them: JSON lines as `foretoken rollout` writes them, or a trace, one JSON
// object {"groups": [{"group", "prompt", "responses"}, ...]}; each plain or gzipped. Other fields are not looked at.

import { AppError, InvalidFieldError } from "../../core/base/errors.ts";
import { SEQUENCES_MAX } from "../../core/wasm/abi.ts";
import {
  type Chunks,
  chunksOf,
  decoded,
  linesOf,
  must,
  objectOf,
  tokensOf,
} from "../../host/json-lines.ts";

/** One prompt and the responses that were recorded for it. */
export interface TraceGroup {
  readonly name: string;
  /** Token ids of the prompt; empty: the recording has none. */
  readonly prompt: Int32Array;
  readonly responses: readonly Int32Array[];
}

/** Limit of a group's responses: a draft group holds no more sequences. */
export const RESPONSES_MAX = SEQUENCES_MAX;
const TOKEN_MAX = 0x7fffffff;
/** Limit of a line: a response of a million tokens, with text and logprobs, takes about 30 MB as JSON. */
const LINE_BYTES_MAX = 256 * 1024 * 1024;
/** Limit of a trace file: the longest text that JSON.parse takes. */
const TRACE_BYTES_MAX = 512 * 1024 * 1024 - 1;

/** Reads the groups of a file of either format. @throws AppError usage, invalid_json, invalid_field. */
export async function* readGroups(path: string, groupsMax: number | null = null) {
  let left = groupsMax ?? Number.POSITIVE_INFINITY;
  for await (const group of groupsIn(path)) {
    yield group;
    left -= 1;
    if (left === 0) return;
  }
}

function groupsIn(path: string): AsyncIterable<TraceGroup> {
  const name = path.replace(/\.gz$/, "");
  if (name.endsWith(".jsonl")) return readResponses(path, chunksOf(path));
  if (name.endsWith(".json")) return readTrace(path, chunksOf(path));
  const kinds = ".jsonl (responses) or .json (a trace), each with or without .gz";
  throw new AppError("usage", `${path}: its name must end with ${kinds}`);
}

/** Reads a trace, holding the whole file in memory. `prompt` may be null. */
export async function* readTrace(file: string, chunks: Chunks): AsyncGenerator<TraceGroup> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of chunks) {
    bytes += chunk.length;
    if (bytes > TRACE_BYTES_MAX) {
      const problem = `is longer than ${TRACE_BYTES_MAX} bytes; JSON lines may be of any length`;
      throw new AppError("invalid_json", `${file}: ${problem}`);
    }
    pieces.push(chunk);
  }
  const { groups } = objectOf(decoded(Buffer.concat(pieces), file), file);
  if (!Array.isArray(groups)) throw refused(file, "groups", must(groups, "be an array of groups"));
  for (const [number, group] of groups.entries()) {
    const where = `${file}: groups[${number}]`;
    const { group: name, prompt, responses } = Object(group) as Record<string, unknown>;
    if (!Array.isArray(responses) || responses.length > RESPONSES_MAX) {
      const bound = `be an array of at most ${RESPONSES_MAX} responses`;
      throw refused(where, "responses", must(responses, bound));
    }
    yield {
      name: nameOf(name, where),
      prompt: promptOf(prompt, { where, field: "prompt" }),
      responses: responses.map((tokens: unknown, i) =>
        tokensOf(tokens, { where, field: `responses[${i}]` }, TOKEN_MAX),
      ),
    };
  }
}

interface Line {
  readonly where: string;
  readonly group: string;
  readonly index: number;
  readonly prompt: Int32Array;
  readonly tokens: Int32Array;
}

/**
 * Reads response lines, holding one group in memory: its lines must be adjacent. A name that comes again later is another
 * group, since logs of several iterations repeat names. Responses are sorted by their index.
 */
export async function* readResponses(file: string, chunks: Chunks): AsyncGenerator<TraceGroup> {
  let open = new Map<number, Line>();
  let first: Line | null = null;
  for await (const { where, text } of linesOf(file, chunks, LINE_BYTES_MAX)) {
    const line = lineOf(objectOf(text, where), where);
    if (first !== null && first.group !== line.group) {
      yield groupOf(first, open);
      open = new Map();
      first = null;
    }
    first ??= line;
    check(line, first, open);
    open.set(line.index, line);
  }
  if (first === null) throw new AppError("invalid_json", `${file}: holds no response`);
  yield groupOf(first, open);
}

function lineOf(value: Readonly<Record<string, unknown>>, where: string): Line {
  const { index, group, prompt_token_ids: prompt, token_ids: tokens } = value;
  if (typeof index !== "number" || !Number.isSafeInteger(index) || index < 0) {
    throw refused(where, "index", must(index, "be a whole number from 0 on"));
  }
  return {
    where,
    group: nameOf(group, where),
    index,
    prompt: promptOf(prompt, { where, field: "prompt_token_ids" }),
    tokens: tokensOf(tokens, { where, field: "token_ids" }, TOKEN_MAX),
  };
}

function check({ where, index, prompt }: Line, first: Line, open: ReadonlyMap<number, Line>): void {
  const earlier = open.get(index)?.where;
  if (earlier !== undefined) {
    throw refused(where, "index", `is ${index}, as on ${earlier}; a group has each index once`);
  }
  if (prompt.length !== first.prompt.length || prompt.some((id, i) => id !== first.prompt[i])) {
    const problem = `differs from that of ${first.where}; the prompt of a group is one`;
    throw refused(where, "prompt_token_ids", problem);
  }
  if (open.size === RESPONSES_MAX) {
    throw refused(where, "group", `has more than ${RESPONSES_MAX} responses`);
  }
}

function groupOf({ group, prompt }: Line, open: ReadonlyMap<number, Line>): TraceGroup {
  const ordered = [...open.values()].sort((a, b) => a.index - b.index);
  return { name: group, prompt, responses: ordered.map(({ tokens }) => tokens) };
}

/** The prompt's token ids; none if the field is absent or null. */
function promptOf(value: unknown, place: { where: string; field: string }): Int32Array {
  return tokensOf(value ?? [], place, TOKEN_MAX);
}

function nameOf(value: unknown, where: string): string {
  if (typeof value === "string" && value !== "") return value;
  throw refused(where, "group", must(value, "be a string that names the group"));
}

function refused(where: string, field: string, problem: string): InvalidFieldError {
  return new InvalidFieldError({ where, field, problem });
}
