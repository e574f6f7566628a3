// Reads an answer in one piece as the events of an equivalent stream, and cuts out the logprobs of the prompt, unparsed,
// which a stream does not bring.

import type { PromptReport } from "../../core/request/response.ts";
import type { ChunkRun } from "./chunk-run.ts";
import type { EngineEvent } from "./stream-event.ts";

/** Collects an answer's bytes. */
export class WholeReader {
  readonly #bytesMax: number;
  readonly #parts: Buffer[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Adds bytes; false: the answer exceeds the limit. */
  push(bytes: Buffer): boolean {
    this.#bytes += bytes.length;
    if (this.#bytes > this.#bytesMax) return false;
    // The socket's buffer is used again.
    this.#parts.push(Buffer.from(bytes));
    return true;
  }

  all(): Buffer {
    return Buffer.concat(this.#parts);
  }
}

export interface WholeAnswer {
  readonly events: readonly EngineEvent[];
  readonly report: PromptReport;
}

const DONE: EngineEvent = { kind: "done" };

export function wholeAnswer(data: Buffer, read: (data: Buffer) => EngineEvent): WholeAnswer {
  const byRank = cutField(data, "prompt_logprobs");
  const byToken = cutField(byRank?.rest ?? data, "prompt_token_id_logprobs");
  const event = read(byToken?.rest ?? byRank?.rest ?? data);
  const report = { logprobs: copyOf(byRank), tokenIdLogprobs: copyOf(byToken) };
  if (event.kind !== "piece") return { events: [event], report };
  const { usage } = event;
  const counted: EngineEvent[] = usage === null ? [] : [{ kind: "usage", usage }];
  return { events: [event, ...counted, DONE], report };
}

/** Copies the part, so that the whole answer can be freed. */
function copyOf(cut: Cut | null): Uint8Array | null {
  return cut === null ? null : Uint8Array.from(cut.value);
}

/** Cuts the routed experts out of an event before it is parsed: they are an .npy file in base64. */
export function withoutExperts(
  { expertsFrom }: Pick<ChunkRun, "expertsFrom">,
  data: Buffer,
): { experts: Uint8Array | null; rest: Buffer } {
  const cut = expertsFrom === null ? null : cutField(data, "routed_experts");
  if (cut === null) return { experts: null, rest: data };
  const text = cut.value.subarray(1, -1).toString("latin1");
  return { experts: new Uint8Array(Buffer.from(text, "base64")), rest: cut.rest };
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const BLANK = 0x20;
const OPENING: ReadonlySet<number> = new Set([0x5b, 0x7b]);
const CLOSING: ReadonlySet<number> = new Set([0x5d, 0x7d]);
const NULL = Buffer.from("null");

export interface Cut {
  /** The value as JSON text. */
  readonly value: Buffer;
  /** The answer, with null in place of the value. */
  readonly rest: Buffer;
}

/**
 * Cuts out the first field of the name, at any depth, whose value is a text, a list or an object; null: there is none, or
 * its end is missing. Quotes inside of texts are escaped in JSON, so no text can be mistaken for the field.
 */
export function cutField(json: Buffer, name: string): Cut | null {
  const key = Buffer.from(JSON.stringify(name));
  for (let at = json.indexOf(key); at >= 0; at = json.indexOf(key, at + 1)) {
    let from = at + key.length;
    while (json[from] === BLANK) from += 1;
    if (json[from] !== COLON) continue;
    from += 1;
    while (json[from] === BLANK) from += 1;
    const first = json[from] ?? 0;
    if (first !== QUOTE && !OPENING.has(first)) continue;
    const to = first === QUOTE ? textEnd(json, from) : nestedEnd(json, from);
    if (to < 0) return null;
    const rest = Buffer.concat([json.subarray(0, from), NULL, json.subarray(to)]);
    return { value: json.subarray(from, to), rest };
  }
  return null;
}

/** End of the string that begins at `from`; -1: it is incomplete. */
function textEnd(json: Buffer, from: number): number {
  let end = from;
  do {
    end = json.indexOf(QUOTE, end + 1);
    if (end < 0) return -1;
  } while (isEscaped(json, end));
  return end + 1;
}

function isEscaped(json: Buffer, at: number): boolean {
  let before = at;
  while (json[before - 1] === BACKSLASH) before -= 1;
  return (at - before) % 2 === 1;
}

function nestedEnd(json: Buffer, from: number): number {
  let depth = 0;
  for (let at = from; at < json.length; at += 1) {
    const byte = json[at] ?? 0;
    if (byte === QUOTE) {
      const end = textEnd(json, at);
      if (end < 0) return -1;
      at = end - 1;
    } else if (OPENING.has(byte)) depth += 1;
    else if (CLOSING.has(byte)) {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return -1;
}
