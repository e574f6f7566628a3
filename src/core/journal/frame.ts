// The frames of a journal: a magic number, the length and the CRC-32 of the payload, the payload. A frame is written in
// one piece, so a crash can leave a frame at the end that is too short or has a wrong CRC: it is cut off. A wrong frame
// with a right one after it is damage, and an error.

import { crc32 } from "node:zlib";

const MAGIC = 0x4c4a5446;
export const FRAME_HEADER_BYTES = 12;
/** Limit of a payload. Real ones are far smaller; without it, a damaged length could look like a large frame. */
const PAYLOAD_BYTES_MAX = 2 ** 30;

/** Writes the header into the first `FRAME_HEADER_BYTES` of `frame`; the payload is the rest. */
export function sealFrame(frame: Uint8Array): void {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  const payload = frame.subarray(FRAME_HEADER_BYTES);
  view.setUint32(0, MAGIC, true);
  view.setUint32(4, payload.byteLength, true);
  view.setUint32(8, crc32(payload), true);
}

export type FrameScan =
  | { readonly kind: "frame"; readonly payload: Uint8Array; readonly end: number }
  | { readonly kind: "end" }
  /** The rest of the file is the beginning of a frame that was never finished. */
  | { readonly kind: "torn" }
  /** The frame here is wrong, and a right one begins at `next`. */
  | { readonly kind: "damaged"; readonly next: number };

export function scanFrame(bytes: Uint8Array, at: number): FrameScan {
  if (at === bytes.byteLength) return { kind: "end" };
  const payload = payloadAt(bytes, at);
  if (payload !== null) {
    return { kind: "frame", payload, end: at + FRAME_HEADER_BYTES + payload.byteLength };
  }
  for (let next = at + 1; next + FRAME_HEADER_BYTES <= bytes.byteLength; next += 1) {
    if (bytes[next] !== (MAGIC & 0xff)) continue;
    if (payloadAt(bytes, next) !== null) return { kind: "damaged", next };
  }
  return { kind: "torn" };
}

/** Whether a crash in the first write can have left these bytes: a frame's beginning, or zeros for lost contents. */
export function isOwnBeginning(bytes: Uint8Array): boolean {
  const beginning = bytes.subarray(0, 4);
  const isMagic = beginning.every((byte, i) => byte === ((MAGIC >>> (8 * i)) & 0xff));
  return isMagic || bytes.every((byte) => byte === 0);
}

/** The payload of the frame at `at`; null: no intact frame begins there. */
function payloadAt(bytes: Uint8Array, at: number): Uint8Array | null {
  const left = bytes.byteLength - at - FRAME_HEADER_BYTES;
  if (left < 0) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset + at, FRAME_HEADER_BYTES);
  if (view.getUint32(0, true) !== MAGIC) return null;
  const length = view.getUint32(4, true);
  if (length > left || length > PAYLOAD_BYTES_MAX) return null;
  const start = at + FRAME_HEADER_BYTES;
  const payload = bytes.subarray(start, start + length);
  return crc32(payload) === view.getUint32(8, true) ? payload : null;
}
