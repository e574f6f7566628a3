// The file that keeps the history over a restart: every response is appended as it finishes, and the file is written anew
// when it has grown to several times what is kept. Writing never delays a response: it happens between turns, and beyond
// a bound of bytes that wait for the disk, responses are left out of the file. A file that cannot be written is given up.
// The file is a header and records; a record that was cut or damaged ends what can be read.
//
//   u32 bytes of what follows the checksum | u32 CRC-32 of it | f64 prompt's key | u32 epoch | u32 length | i32 tokens ...

import { appendFile, readFile, rename, stat, truncate, writeFile } from "node:fs/promises";
import { crc32 } from "node:zlib";
import { AppError, errorText } from "../../core/base/errors.ts";
import { HISTORY_TOKENS_MAX } from "../../core/wasm/suffix-index.ts";

export interface HistoryRecord {
  /** See promptKey. */
  readonly key: number;
  readonly epoch: number;
  /** Output tokens of the response, which may have more than are kept; 0: it did not finish. */
  readonly length: number;
  readonly tokens: Int32Array;
}

export const HEADER = new TextEncoder().encode("FTHIST01");
const FRAME_BYTES = 8;
const FIXED_BYTES = 16;
const TOKEN_BYTES = 4;

export function recordBytes(record: HistoryRecord): number {
  return FRAME_BYTES + FIXED_BYTES + record.tokens.length * TOKEN_BYTES;
}

export function encodeRecord(record: HistoryRecord): Uint8Array {
  const bytes = new Uint8Array(recordBytes(record));
  const view = new DataView(bytes.buffer);
  view.setUint32(0, bytes.length - FRAME_BYTES, true);
  view.setFloat64(8, record.key, true);
  view.setUint32(16, record.epoch, true);
  view.setUint32(20, record.length, true);
  // Every host of Bun is little-endian.
  new Int32Array(bytes.buffer, FRAME_BYTES + FIXED_BYTES).set(record.tokens);
  view.setUint32(4, crc32(bytes.subarray(FRAME_BYTES)), true);
  return bytes;
}

/** Calls `take` with each record after the header; returns how many bytes of the file are sound, 0 without its header. */
function decodeRecords(bytes: Uint8Array, take: (record: HistoryRecord) => void): number {
  const isHistory = HEADER.every((byte, i) => bytes[i] === byte);
  if (!isHistory) return 0;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = HEADER.length;
  while (at + FRAME_BYTES + FIXED_BYTES <= bytes.length) {
    const size = view.getUint32(at, true);
    const end = at + FRAME_BYTES + size;
    const count = (size - FIXED_BYTES) / TOKEN_BYTES;
    if (end > bytes.length || !Number.isInteger(count) || count < 0) break;
    if (count > HISTORY_TOKENS_MAX) break;
    if (crc32(bytes.subarray(at + FRAME_BYTES, end)) !== view.getUint32(at + 4, true)) break;
    const tokens = new Int32Array(count);
    new Uint8Array(tokens.buffer).set(bytes.subarray(end - count * TOKEN_BYTES, end));
    take({
      key: view.getFloat64(at + 8, true),
      epoch: view.getUint32(at + 16, true),
      length: view.getUint32(at + 20, true),
      tokens,
    });
    at = end;
  }
  return at;
}

export interface HistoryFileOptions {
  readonly path: string;
  /** The records that the file keeps when it is rewritten. */
  readonly kept: () => Iterable<HistoryRecord>;
  /** The file is written anew beyond this many bytes, and then twice what it had. */
  readonly bytesMax: number;
  /** Once: the file is given up, and why. */
  readonly failed: (error: unknown) => void;
}

/** Bytes that wait for the disk, at most. */
const PENDING_BYTES_MAX = 32 * 2 ** 20;
const MODE = 0o600;
/** A larger file is no history of this server. */
const READ_BYTES_MAX = 2 ** 31;

export class HistoryFile {
  readonly #options: HistoryFileOptions;
  #isOpen = true;
  #bytes: number;
  #bytesMax: number;
  #pending: Uint8Array[] = [];
  #pendingBytes = 0;
  #writing: Promise<void> | null = null;

  private constructor(options: HistoryFileOptions, bytes: number) {
    this.#options = options;
    this.#bytes = bytes;
    this.#bytesMax = Math.max(options.bytesMax, bytes);
  }

  /**
   * Reads what an earlier process has written, then takes more. What follows a damaged record is cut off.
   * @throws AppError invalid_config: it can be neither read nor written, or is no history.
   */
  static async open(
    options: HistoryFileOptions,
    take: (record: HistoryRecord) => void,
  ): Promise<HistoryFile> {
    const { path } = options;
    try {
      const before = await bytesOf(path);
      const sound = before.length === 0 ? 0 : decodeRecords(before, take);
      if (before.length > 0 && sound === 0) {
        throw new AppError(
          "invalid_config",
          `the history file ${path} is no history of this program`,
        );
      }
      if (sound < before.length) await truncate(path, sound);
      await appendFile(path, sound === 0 ? HEADER : new Uint8Array(0), { mode: MODE });
      return new HistoryFile(options, Math.max(sound, HEADER.length));
    } catch (cause) {
      if (cause instanceof AppError) throw cause;
      const problem = `the history file ${path} cannot be used: ${errorText(cause)}`;
      throw new AppError("invalid_config", problem, { cause });
    }
  }

  /** Left out of the file where too many wait for the disk. */
  append(record: HistoryRecord): void {
    if (!this.#isOpen) return;
    const bytes = encodeRecord(record);
    if (this.#pendingBytes + bytes.length > PENDING_BYTES_MAX) return;
    this.#pending.push(bytes);
    this.#pendingBytes += bytes.length;
    this.#writing ??= this.#write();
  }

  /** Resolves when everything is in the file. Nothing is appended afterwards. */
  async close(): Promise<void> {
    await this.#writing;
    this.#isOpen = false;
  }

  async #write(): Promise<void> {
    try {
      while (this.#pending.length > 0) {
        const bytes = Buffer.concat(this.#pending);
        this.#pending = [];
        await appendFile(this.#options.path, bytes, { mode: MODE });
        this.#pendingBytes -= bytes.length;
        this.#bytes += bytes.length;
        if (this.#bytes > this.#bytesMax) await this.#writeAnew();
      }
    } catch (error) {
      this.#isOpen = false;
      this.#pending = [];
      this.#pendingBytes = 0;
      const { path, failed } = this.#options;
      failed(
        new Error(`the history file ${path} is given up: ${errorText(error)}`, { cause: error }),
      );
    } finally {
      this.#writing = null;
    }
  }

  /** Replaces the file by a new one, at once. Records that wait to be written are among the kept ones already. */
  async #writeAnew(): Promise<void> {
    const { path, kept, bytesMax } = this.#options;
    const records = [...kept()];
    this.#pending = [];
    this.#pendingBytes = 0;
    const fresh = `${path}.new`;
    let bytes = HEADER.length;
    await writeFile(fresh, HEADER, { mode: MODE });
    for (const record of records) {
      const encoded = encodeRecord(record);
      bytes += encoded.length;
      await appendFile(fresh, encoded);
    }
    await rename(fresh, path);
    this.#bytes = bytes;
    this.#bytesMax = Math.max(bytesMax, 2 * bytes);
  }
}

async function bytesOf(path: string): Promise<Uint8Array> {
  try {
    const { size } = await stat(path);
    if (size > READ_BYTES_MAX) throw new Error(`it has ${size} bytes, more than ${READ_BYTES_MAX}`);
    return await readFile(path);
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return new Uint8Array(0);
    throw error;
  }
}
