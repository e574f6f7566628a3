// What a frame's payload holds: records, one after the other. Numbers are little-endian.
//
//   1 JSON    length u32, UTF-8. The first record of a journal is the run's description (RunHeader); the others are
//             the beginnings and the ends of responses' chunks and responses (ChunkRecord, FinishRecord).
//   2 output  stream u32, offset u32, count u32, alternatives u32; then columns: token ids i32, logprobs f32, and of each
//             token the alternatives' ids i32 and logprobs f32. One without tokens: the response restarts.
//
// A stream is a response's number in its run.

import { assert } from "../base/assert.ts";
import type { WeightsId } from "../base/ids.ts";
import type { TopLogprobs } from "../request/columns.ts";
import type { FinishReason } from "../request/request.ts";
import type { Refusal } from "../request/response.ts";
import { FRAME_HEADER_BYTES, sealFrame } from "./frame.ts";

const JSON_KIND = 1;
const OUTPUT_KIND = 2;
const BYTES_MIN = 4096;

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

export interface OutputRecord {
  readonly type: "output";
  readonly stream: number;
  readonly offset: number;
  readonly tokens: Int32Array;
  readonly logprobs: Float32Array;
  readonly top: TopLogprobs | null;
}

export type StreamRecord = ChunkRecord | FinishRecord | OutputRecord;

/** Writes records behind one another into one array, which is used again for the next frame. */
export class RecordWriter {
  #bytes = new Uint8Array(BYTES_MIN);
  #view = new DataView(this.#bytes.buffer);
  #length = FRAME_HEADER_BYTES;
  readonly #encoder = new TextEncoder();

  get isEmpty(): boolean {
    return this.#length === FRAME_HEADER_BYTES;
  }

  json(record: object): void {
    const text = this.#encoder.encode(JSON.stringify(record));
    this.#reserve(5 + text.byteLength);
    this.#bytes[this.#length] = JSON_KIND;
    this.#view.setUint32(this.#length + 1, text.byteLength, true);
    this.#bytes.set(text, this.#length + 5);
    this.#length += 5 + text.byteLength;
  }

  output(record: Omit<OutputRecord, "type">): void {
    const { stream, offset, tokens, logprobs, top } = record;
    this.#reserve(17 + 8 * tokens.length * (1 + (top?.count ?? 0)));
    this.#bytes[this.#length] = OUTPUT_KIND;
    const view = this.#view;
    view.setUint32(this.#length + 1, stream, true);
    view.setUint32(this.#length + 5, offset, true);
    view.setUint32(this.#length + 9, tokens.length, true);
    view.setUint32(this.#length + 13, top?.count ?? 0, true);
    this.#length += 17;
    this.#column(tokens);
    this.#column(logprobs);
    if (top === null) return;
    this.#column(top.tokens);
    this.#column(top.logprobs);
  }

  /** The frame of all records since the last call: valid until a record is written. */
  take(): Uint8Array {
    const frame = this.#bytes.subarray(0, this.#length);
    sealFrame(frame);
    this.#length = FRAME_HEADER_BYTES;
    return frame;
  }

  #column(values: Int32Array | Float32Array): void {
    const { buffer, byteOffset, byteLength } = values;
    this.#bytes.set(new Uint8Array(buffer, byteOffset, byteLength), this.#length);
    this.#length += byteLength;
  }

  #reserve(bytes: number): void {
    const needed = this.#length + bytes;
    if (needed <= this.#bytes.byteLength) return;
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.byteLength));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

/** The records of a payload whose CRC is right. JSON records as they were written. */
export function* readRecords(payload: Uint8Array): Iterable<OutputRecord | object> {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  const decoder = new TextDecoder();
  for (let at = 0; at < payload.byteLength; ) {
    const kind = payload[at];
    if (kind === JSON_KIND) {
      const start = at + 5;
      const length = view.getUint32(at + 1, true);
      const record: unknown = JSON.parse(decoder.decode(payload.subarray(start, start + length)));
      assert(typeof record === "object" && record !== null, "a JSON record is an object");
      yield record;
      at = start + length;
      continue;
    }
    assert(kind === OUTPUT_KIND, `kind ${kind} is a kind of record`);
    const [count, alternatives] = [view.getUint32(at + 9, true), view.getUint32(at + 13, true)];
    let next = at + 17;
    // Copied, because a column must begin at a multiple of four.
    const column = (values: number): ArrayBuffer => {
      const bytes = payload.slice(next, next + 4 * values);
      assert(bytes.byteLength === 4 * values, "a record ends inside its payload");
      next += 4 * values;
      return bytes.buffer;
    };
    const tokens = new Int32Array(column(count));
    const logprobs = new Float32Array(column(count));
    const rows = count * alternatives;
    const top =
      alternatives === 0
        ? null
        : {
            count: alternatives,
            tokens: new Int32Array(column(rows)),
            logprobs: new Float32Array(column(rows)),
          };
    const [stream, offset] = [view.getUint32(at + 1, true), view.getUint32(at + 5, true)];
    yield { type: "output", stream, offset, tokens, logprobs, top };
    at = next;
  }
}
