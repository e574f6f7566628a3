// One response of the history as bytes of its file, and back. A file is a header and records; a record that was cut or
// damaged ends what can be read of it.
//
//   u32 bytes of what follows the checksum | u32 CRC-32 of it | f64 prompt's key | u32 epoch | u32 length | i32 tokens ...

import { crc32 } from "node:zlib";
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
export function decodeRecords(bytes: Uint8Array, take: (record: HistoryRecord) => void): number {
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
