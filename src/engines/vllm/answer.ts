// Reads the answer to a request for tokens, wherever the network splits it: a stream of server-sent events (one line each,
// as vLLM writes them), or one piece as the events of an equivalent stream. Routed experts and the logprobs of a prompt are
// cut out before an event is parsed: they are large.

import type { PromptReport } from "../../core/request/response.ts";
import type { ChunkRequest } from "./dialect.ts";
import { DONE, type EngineEvent } from "./stream-event.ts";

/** Returns whether to go on reading. */
type Take = (event: EngineEvent) => boolean;

export class AnswerReader {
  readonly #chunk: Pick<ChunkRequest, "form" | "expertsFrom">;
  readonly #read: (data: Buffer) => EngineEvent;
  readonly #lines: SseReader;
  readonly #whole: Pieces;
  /** Routed experts of the event; null: it had none. */
  experts: Uint8Array | null = null;
  /** null: the answer is a stream. */
  report: PromptReport | null = null;

  /** `bytesMax`: limit of a line, or of an answer in one piece. */
  constructor(
    chunk: Pick<ChunkRequest, "form" | "expertsFrom">,
    bytesMax: number,
    read: (data: Buffer) => EngineEvent,
  ) {
    this.#chunk = chunk;
    this.#read = read;
    this.#lines = new SseReader(bytesMax);
    this.#whole = new Pieces(bytesMax);
  }

  /** Calls `take` with each event that the bytes complete; false: the limit is exceeded. */
  push(bytes: Buffer, take: Take): boolean {
    if (this.#chunk.form === "whole") return this.#whole.push(bytes);
    return this.#lines.push(bytes, (data) => take(this.#read(this.#withoutExperts(data))));
  }

  /** Call at the end of the answer, once it is complete. */
  end(take: Take): void {
    if (this.#chunk.form !== "whole") return;
    const data = this.#withoutExperts(this.#whole.take());
    const byRank = cutField(data, "prompt_logprobs");
    const byToken = cutField(byRank?.rest ?? data, "prompt_token_id_logprobs");
    this.report = { logprobs: copyOf(byRank), tokenIdLogprobs: copyOf(byToken) };
    const event = this.#read(byToken?.rest ?? byRank?.rest ?? data);
    const goesOn = take(event);
    if (event.kind !== "piece" || !goesOn) return;
    const { usage } = event;
    if (usage === null || take({ kind: "usage", usage })) take(DONE);
  }

  /** They are an .npy file in base64. */
  #withoutExperts(data: Buffer): Buffer {
    const cut = this.#chunk.expertsFrom === null ? null : cutField(data, "routed_experts");
    this.experts = null;
    if (cut === null) return data;
    const text = cut.value.subarray(1, -1).toString("latin1");
    this.experts = new Uint8Array(Buffer.from(text, "base64"));
    return cut.rest;
  }
}

/** Copies the part, so that the whole answer can be freed. */
function copyOf(cut: Cut | null): Uint8Array | null {
  return cut === null ? null : Uint8Array.from(cut.value);
}

/** Bytes in the order of their arrival. */
class Pieces {
  readonly #bytesMax: number;
  #pieces: Buffer[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** false: the limit is exceeded. */
  push(piece: Buffer): boolean {
    this.#bytes += piece.length;
    if (this.#bytes > this.#bytesMax) return false;
    // The socket's buffer is used again: what outlives the call is copied.
    this.#pieces.push(Buffer.from(piece));
    return true;
  }

  /** All bytes so far, and `last`, which is not copied if it is alone. */
  take(last?: Buffer): Buffer {
    if (last !== undefined && this.#pieces.length === 0) return last;
    const all = Buffer.concat(last === undefined ? this.#pieces : [...this.#pieces, last]);
    this.#pieces = [];
    this.#bytes = 0;
    return all;
  }
}

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const DATA = Buffer.from("data:");

export class SseReader {
  /** The beginning of an incomplete line. */
  readonly #rest: Pieces;

  constructor(bytesMax: number) {
    this.#rest = new Pieces(bytesMax);
  }

  /**
   * Calls `event` with the data of each complete event, valid during the call only; `event` returns false to stop.
   * Returns false if a line exceeds the limit.
   */
  push(bytes: Buffer, event: (data: Buffer) => boolean): boolean {
    let from = 0;
    for (;;) {
      const end = bytes.indexOf(LINE_FEED, from);
      if (end < 0) return from === bytes.length || this.#rest.push(bytes.subarray(from));
      const data = dataOf(this.#rest.take(bytes.subarray(from, end)));
      from = end + 1;
      if (data !== null && !event(data)) return true;
    }
  }
}

/** The data of a line; null: it has none (a comment, an event's name, the empty line between events). */
function dataOf(line: Buffer): Buffer | null {
  if (line.length < DATA.length || line.compare(DATA, 0, DATA.length, 0, DATA.length) !== 0) {
    return null;
  }
  let from = DATA.length;
  let to = line.length;
  if (line[from] === BLANK) from += 1;
  if (line[to - 1] === CARRIAGE_RETURN) to -= 1;
  return line.subarray(from, to);
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COLON = 0x3a;
const BLANK = 0x20;
const OPENING: ReadonlySet<number> = new Set([0x5b, 0x7b]);
const CLOSING: ReadonlySet<number> = new Set([0x5d, 0x7d]);
const NULL = Buffer.from("null");

interface Cut {
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
