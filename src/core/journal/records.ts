// A frame's payload: records, one after the other, of 32-bit little-endian words. The first word is the kind.
//
//   1 JSON    length in bytes, UTF-8, filled up with spaces. The first record of a journal is the run's description;
//             the others are beginnings of chunks, ends of responses, new weights, and changes of the run by its client
//             (ChunkRecord, FinishRecord, EpochRecord, ChangeRecord).
//   2 output  stream, offset, tokens, alternatives of each; then columns: token ids i32, logprobs f32, and of each token
//             the alternatives' ids i32 and logprobs f32. One without tokens: the response restarts.
//
// A stream is a response's number in its run.

import { assert, present } from "../base/assert.ts";
import type { WeightsId } from "../base/ids.ts";
import type { OutputColumns, TopLogprobs } from "../request/columns.ts";
import type { FinishReason } from "../request/request.ts";
import type { Refusal } from "../request/response.ts";
import { FRAME_HEADER_BYTES, sealFrame } from "./frame.ts";

const JSON_KIND = 1;
const OUTPUT_KIND = 2;
const WORDS_MIN = 1024;
const FRAME_HEADER_WORDS = FRAME_HEADER_BYTES / 4;
const OUTPUT_WORDS = 5;
const SPACE = 0x20;

export interface ChunkRecord {
  readonly type: "chunk";
  readonly stream: number;
  readonly worker: number;
  readonly epoch: number;
  readonly weights: WeightsId | null;
  readonly offset: number;
}

export interface FinishRecord {
  readonly type: "finish";
  readonly stream: number;
  readonly reason: FinishReason;
  readonly refusal: Refusal | null;
}

/** A weight epoch begins: see HeldWeights for the fields. */
export interface EpochRecord {
  readonly type: "epoch";
  readonly epoch: number;
  readonly version: string;
  readonly weights: WeightsId | null;
  readonly base: unknown;
}

/** A client has changed the run; `change` is the owner's record of it. */
export interface ChangeRecord {
  readonly type: "change";
  readonly change: unknown;
}

export interface OutputRecord {
  readonly type: "output";
  readonly stream: number;
  readonly offset: number;
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
}

/** Whether a value is a count as journals hold it, in 32 bits. */
export function isCount(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) >= 0 && Number(value) <= 0xffffffff;
}

export type StreamRecord = ChunkRecord | FinishRecord | OutputRecord;

/** Writes records one after the other into one of two arrays, which take turns: the last frame stays as it is meanwhile. */
export class RecordWriter {
  #words = new Uint32Array(WORDS_MIN);
  /** The array of the last frame, which may still be on its way to the disk. */
  #taken = new Uint32Array(WORDS_MIN);
  #floats = new Float32Array(this.#words.buffer);
  #length = FRAME_HEADER_WORDS;
  readonly #encoder = new TextEncoder();

  get isEmpty(): boolean {
    return this.#length === FRAME_HEADER_WORDS;
  }

  json(record: object): void {
    const text = this.#encoder.encode(JSON.stringify(record));
    const words = 2 + Math.ceil(text.byteLength / 4);
    this.#reserve(words);
    const at = this.#length;
    this.#words[at] = JSON_KIND;
    this.#words[at + 1] = text.byteLength;
    const bytes = new Uint8Array(this.#words.buffer, 4 * (at + 2), 4 * (words - 2));
    bytes.fill(SPACE, text.byteLength & ~3);
    bytes.set(text);
    this.#length += words;
  }

  /** Writes the output from token `from` on, which must not be empty. */
  output(stream: number, output: OutputColumns, from: number): void {
    const count = output.length - from;
    const top = output.topLogprobs(from);
    const alternatives = top?.count ?? 0;
    this.#reserve(OUTPUT_WORDS + 2 * count * (1 + alternatives));
    this.#outputHead(stream, from, count, alternatives);
    output.copyTokens(from, this.#words, this.#length);
    output.copyLogprobs(from, this.#floats, this.#length + count);
    this.#length += 2 * count;
    if (top === null) return;
    new Int32Array(this.#words.buffer).set(top.tokens, this.#length);
    this.#floats.set(top.logprobs, this.#length + count * alternatives);
    this.#length += 2 * count * alternatives;
  }

  restart(stream: number): void {
    this.#reserve(OUTPUT_WORDS);
    this.#outputHead(stream, 0, 0, 0);
  }

  /** Takes all records since the last call as a frame, which is valid until the next call. */
  take(): Uint8Array {
    const frame = new Uint8Array(this.#words.buffer, 0, 4 * this.#length);
    sealFrame(frame);
    this.#length = FRAME_HEADER_WORDS;
    this.#writeTo(this.#taken);
    return frame;
  }

  #writeTo(words: Uint32Array<ArrayBuffer>): void {
    this.#taken = this.#words;
    this.#words = words;
    this.#floats = new Float32Array(words.buffer);
  }

  #outputHead(stream: number, offset: number, count: number, alternatives: number): void {
    const words = this.#words;
    const at = this.#length;
    words[at] = OUTPUT_KIND;
    words[at + 1] = stream;
    words[at + 2] = offset;
    words[at + 3] = count;
    words[at + 4] = alternatives;
    this.#length += OUTPUT_WORDS;
  }

  #reserve(words: number): void {
    const needed = this.#length + words;
    if (needed <= this.#words.length) return;
    const grown = new Uint32Array(Math.max(needed, 2 * this.#words.length));
    grown.set(this.#words.subarray(0, this.#length));
    this.#words = grown;
    this.#floats = new Float32Array(grown.buffer);
  }
}

/** Reads the records of an intact payload. JSON records are returned parsed. */
export function* readRecords(payload: Uint8Array): Iterable<OutputRecord | object> {
  // Copied, because words must begin at a multiple of four.
  const { buffer } = new Uint8Array(payload);
  const words = new Uint32Array(buffer);
  const word = (at: number): number => present(words[at], "a record ends inside its payload");
  const decoder = new TextDecoder();
  for (let at = 0; at < words.length; ) {
    const kind = word(at);
    if (kind === JSON_KIND) {
      const bytes = new Uint8Array(buffer, 4 * (at + 2), word(at + 1));
      const record: unknown = JSON.parse(decoder.decode(bytes));
      assert(typeof record === "object" && record !== null, "a JSON record is an object");
      yield record;
      at += 2 + Math.ceil(bytes.byteLength / 4);
      continue;
    }
    assert(kind === OUTPUT_KIND, `kind ${kind} is a kind of record`);
    const stream = word(at + 1);
    const offset = word(at + 2);
    const count = word(at + 3);
    const alternatives = word(at + 4);
    at += OUTPUT_WORDS;
    const rows = count * alternatives;
    const tokens = new Int32Array(buffer, 4 * at, count);
    const logprobs = new Float32Array(buffer, 4 * (at + count), count);
    at += 2 * count;
    const top =
      alternatives === 0
        ? null
        : {
            count: alternatives,
            tokens: new Int32Array(buffer, 4 * at, rows),
            logprobs: new Float32Array(buffer, 4 * (at + rows), rows),
          };
    at += 2 * rows;
    yield { type: "output", stream, offset, tokens, logprobs, top };
  }
}
