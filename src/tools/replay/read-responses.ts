// Reads responses as `foretoken rollout` writes them: a line of JSON for each, the lines of a group
// beside one another. Holds one group at a time. A name that comes again after other groups is
// another group: logs of several iterations repeat names.

import { AppError } from "../../core/base/errors.ts";
import { Pieces } from "./pieces.ts";
import {
  type Chunks,
  decoded,
  must,
  nameOf,
  objectOf,
  promptOf,
  RESPONSES_MAX,
  type TraceGroup,
  tokensOf,
  wrong,
} from "./trace.ts";

const NEWLINE = 0x0a;

interface Line {
  readonly where: string;
  readonly group: string;
  readonly index: number;
  readonly prompt: Int32Array;
  readonly tokens: Int32Array;
}

/**
 * Yields the groups of `file`, responses in the order of their index. A line has `group`, `index`,
 * `token_ids`, and `prompt_token_ids` if the prompt is known; other fields are not looked at.
 * Throws AppError `invalid_json` or `invalid_field`.
 */
export async function* readResponses(file: string, chunks: Chunks): AsyncGenerator<TraceGroup> {
  let open: Map<number, Line> = new Map();
  let first: Line | null = null;
  for await (const { where, text } of lines(file, chunks)) {
    const line = parse(text, where);
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

function parse(text: string, where: string): Line {
  const value = objectOf(text, where);
  const index = value.index;
  if (typeof index !== "number" || !Number.isSafeInteger(index) || index < 0) {
    throw wrong({ where, field: "index" }, must(index, "be a whole number from 0 on"));
  }
  return {
    where,
    group: nameOf(value.group, { where, field: "group" }),
    index,
    prompt: promptOf(value.prompt_token_ids, { where, field: "prompt_token_ids" }),
    tokens: tokensOf(value.token_ids, { where, field: "token_ids" }),
  };
}

function check(line: Line, first: Line, open: ReadonlyMap<number, Line>): void {
  const { where } = line;
  const earlier = open.get(line.index);
  if (earlier !== undefined) {
    const problem = `is ${line.index}, as on ${earlier.where}; a group has each index once`;
    throw wrong({ where, field: "index" }, problem);
  }
  if (!isSame(line.prompt, first.prompt)) {
    const problem = `differs from that of ${first.where}; the prompt of a group is one`;
    throw wrong({ where, field: "prompt_token_ids" }, problem);
  }
  if (open.size === RESPONSES_MAX) {
    throw wrong({ where, field: "group" }, `has more than ${RESPONSES_MAX} responses`);
  }
}

function isSame(a: Int32Array, b: Int32Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i += 1) if (a[i] !== b[i]) return false;
  return true;
}

function groupOf(first: Line, open: ReadonlyMap<number, Line>): TraceGroup {
  const ordered = [...open.values()].sort((a, b) => a.index - b.index);
  const responses = ordered.map((line) => line.tokens);
  return { name: first.group, prompt: first.prompt, responses };
}

/** The lines that are not blank. */
async function* lines(
  file: string,
  chunks: Chunks,
): AsyncGenerator<{ where: string; text: string }> {
  const pieces = new Pieces();
  let number = 1;
  for await (const chunk of chunks) {
    let from = 0;
    for (let to = chunk.indexOf(NEWLINE); to >= 0; to = chunk.indexOf(NEWLINE, from)) {
      const where = `${file}:${number}`;
      pieces.add(chunk.subarray(from, to), where);
      const text = decoded(pieces.take(), where);
      if (text.trim() !== "") yield { where, text };
      number += 1;
      from = to + 1;
    }
    pieces.add(chunk.subarray(from), `${file}:${number}`);
  }
  const where = `${file}:${number}`;
  const text = decoded(pieces.take(), where);
  if (text.trim() !== "") yield { where, text };
}
