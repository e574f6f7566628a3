// The history over a restart: a journal with one frame for each response that has finished. It is written behind the
// responses, and begun anew with what is kept when it has grown to several times that. The history is a cache: what a
// crash or damage takes from the file is not drafted from, and nothing else.

import { AppError } from "../../core/base/errors.ts";
import {
  FRAME_HEADER_BYTES,
  isOwnBeginning,
  scanFrame,
  sealFrame,
} from "../../core/journal/frame.ts";
import type { FrameLog, RunFile } from "../../core/journal/run-journal.ts";
import { HISTORY_TOKENS_MAX } from "../../core/wasm/suffix-index.ts";

export interface HistoryRecord {
  /** Key of the prompt; see promptKey. */
  readonly key: number;
  readonly epoch: number;
  /** Output tokens of the response, which may have more than are kept; 0: it did not finish. */
  readonly length: number;
  readonly tokens: Int32Array;
}

/** A place for the history: the file of an earlier process, and the way to append to it. */
export interface HistoryPlace {
  /** Name of the file, for messages. */
  readonly name: string;
  readonly bytes: Uint8Array;
  /** Opens the file for appending behind its first `keptBytes`; 0: it begins anew. */
  open(log: FrameLog, keptBytes: number): Pick<RunFile, "touch" | "close"> & { beginAnew(): void };
}

/** Bytes of a frame before the tokens: its header, f64 key, u32 epoch, u32 length. */
const FIXED_BYTES = FRAME_HEADER_BYTES + 16;

export function encodeRecord({ key, epoch, length, tokens }: HistoryRecord): Uint8Array {
  const frame = new Uint8Array(FIXED_BYTES + tokens.byteLength);
  const view = new DataView(frame.buffer, FRAME_HEADER_BYTES);
  view.setFloat64(0, key, true);
  view.setUint32(8, epoch, true);
  view.setUint32(12, length, true);
  // Every host of Bun is little-endian.
  new Int32Array(frame.buffer, FIXED_BYTES).set(tokens);
  sealFrame(frame);
  return frame;
}

/** Decodes a frame's payload; null: it is no record of a history. */
function decodeRecord(payload: Uint8Array): HistoryRecord | null {
  const bytes = new Uint8Array(payload);
  const count = (FRAME_HEADER_BYTES + bytes.length - FIXED_BYTES) / Int32Array.BYTES_PER_ELEMENT;
  if (!Number.isInteger(count) || count < 0 || count > HISTORY_TOKENS_MAX) return null;
  const view = new DataView(bytes.buffer);
  const key = view.getFloat64(0, true);
  const epoch = view.getUint32(8, true);
  const tokens = new Int32Array(bytes.buffer, FIXED_BYTES - FRAME_HEADER_BYTES);
  return { key, epoch, length: view.getUint32(12, true), tokens };
}

/** Calls `take` with each record up to the first that is cut or damaged; returns where that begins. */
function readRecords(bytes: Uint8Array, take: (record: HistoryRecord) => void): number {
  for (let at = 0; ; ) {
    const scan = scanFrame(bytes, at);
    const record = scan.kind === "frame" ? decodeRecord(scan.payload) : null;
    if (scan.kind !== "frame" || record === null) return at;
    take(record);
    at = scan.end;
  }
}

export interface HistoryFileOptions {
  readonly place: HistoryPlace;
  /** Called with each record that an earlier process has written. */
  readonly take: (record: HistoryRecord) => void;
  /** The records to rewrite the file with, when it exceeds `bytesMax` and twice its size after the last rewrite. */
  readonly kept: () => Iterable<HistoryRecord>;
  readonly bytesMax: number;
}

export class HistoryFile {
  readonly #options: HistoryFileOptions;
  readonly #file: ReturnType<HistoryPlace["open"]>;
  /** Frames that are not written yet. */
  #frames: Uint8Array[] = [];
  #bytes: number;
  #bytesMax: number;
  #isStopped = false;

  /** Reads the file, then appends to it. @throws AppError invalid_config: the file is no history. */
  constructor(options: HistoryFileOptions) {
    const { place, take, bytesMax } = options;
    this.#options = options;
    this.#bytes = readRecords(place.bytes, take);
    this.#bytesMax = Math.max(bytesMax, this.#bytes);
    if (this.#bytes === 0 && !isOwnBeginning(place.bytes)) {
      const message = `the history file ${place.name} is no history of this program`;
      throw new AppError("invalid_config", message);
    }
    this.#file = place.open(this.#log(), this.#bytes);
  }

  append(record: HistoryRecord): void {
    if (this.#isStopped) return;
    this.#push(record);
    if (this.#bytes > this.#bytesMax) this.#beginAnew();
    this.#file.touch();
  }

  /** Resolves when all records are in the file. */
  async close(): Promise<void> {
    await this.#file.close();
  }

  #push(record: HistoryRecord): void {
    const frame = encodeRecord(record);
    this.#frames.push(frame);
    this.#bytes += frame.length;
  }

  /** Rewrites the file with the kept records, which include those that are not written yet. */
  #beginAnew(): void {
    const { kept, bytesMax } = this.#options;
    this.#frames = [];
    this.#bytes = 0;
    for (const record of kept()) this.#push(record);
    this.#bytesMax = Math.max(bytesMax, 2 * this.#bytes);
    this.#file.beginAnew();
  }

  #log(): FrameLog {
    const frames = () => this.#frames;
    return {
      get hasNews() {
        return frames().length > 0;
      },
      take: () => Buffer.concat(this.#frames.splice(0)),
      stop: () => {
        this.#isStopped = true;
        this.#frames = [];
      },
    };
  }
}
