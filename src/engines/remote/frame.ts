// A frame of the worker link: a value as JSON, and beside it the arrays that it holds, as they are in memory. A schema
// reads it: nothing is taken that the schema does not name. Never throws on what a peer sent.
//
//   | bytes of the JSON (u32) | JSON: [value, lengths of the arrays] | arrays, one after the other |
//
// In the JSON an array stands as its index, so that text which a client chose is never taken for one.

import * as v from "valibot";
import { assert } from "../../core/base/assert.ts";
import { errorText } from "../../core/base/errors.ts";
import type { Decoded } from "../../proto/checked.ts";
import { JSON_DEPTH_MAX, parseJson } from "../../proto/json.ts";

/** Words are sent in their memory layout; every host of Bun is little-endian. */
assert(new Uint8Array(Int32Array.of(1).buffer)[0] === 1, "the host is little-endian");

const HEAD_BYTES = 4;
const WORD_BYTES = 4;
/** A client's or an engine's JSON, within the link's own; 20,000 commands have a hundred objects, lists and texts each. */
const JSON_LIMITS = { depthMax: JSON_DEPTH_MAX + 24, entriesMax: 2 ** 21 };

type Blob = ArrayBuffer | Int32Array | Float32Array | Uint8Array;

export function encodeFrame(value: unknown): Uint8Array {
  const blobs: Uint8Array[] = [];
  const json = JSON.stringify(value, (_, one: unknown) => {
    if (isBlob(one)) return blobs.push(bytesOf(one)) - 1;
    if (typeof one === "number" && !Number.isFinite(one)) return String(one);
    return one;
  });
  const lengths = blobs.map((blob) => blob.length);
  const head = Buffer.from(`[${json},[${lengths.join(",")}]]`);
  const frame = new Uint8Array(HEAD_BYTES + head.length + lengths.reduce((sum, n) => sum + n, 0));
  new DataView(frame.buffer).setUint32(0, head.length, true);
  frame.set(head, HEAD_BYTES);
  let at = HEAD_BYTES + head.length;
  for (const blob of blobs) {
    frame.set(blob, at);
    at += blob.length;
  }
  return frame;
}

function isBlob(value: unknown): value is Blob {
  return ArrayBuffer.isView(value) || value instanceof ArrayBuffer;
}

function bytesOf(blob: Blob): Uint8Array {
  if (blob instanceof ArrayBuffer) return new Uint8Array(blob);
  return new Uint8Array(blob.buffer, blob.byteOffset, blob.byteLength);
}

/** Binary parts of the frame that is being read. Each is taken once, so a frame cannot multiply its bytes. */
let unread: (Uint8Array | null)[] = [];

export function decodeFrame<M>(bytes: Uint8Array, schema: v.GenericSchema<unknown, M>): Decoded<M> {
  let value: unknown;
  try {
    value = valueIn(bytes);
  } catch (error) {
    return { kind: "undecodable", problem: errorText(error) };
  }
  const read = v.safeParse(schema, value, { abortEarly: true, abortPipeEarly: true });
  unread = [];
  if (read.success) return { kind: "ok", message: read.output };
  const [issue] = read.issues;
  return { kind: "invalid_message", problem: `${v.getDotPath(issue) ?? ""}: ${issue.message}` };
}

/** @throws Error: the bytes are no frame. */
function valueIn(bytes: Uint8Array): unknown {
  if (bytes.length < HEAD_BYTES) throw new Error("the frame is too short");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const headEnd = HEAD_BYTES + view.getUint32(0, true);
  if (headEnd > bytes.length) throw new Error("the frame ends within its JSON");
  const text = Buffer.from(bytes.buffer, bytes.byteOffset, headEnd).toString("utf8", HEAD_BYTES);
  const parsed = parseJson(text, JSON_LIMITS);
  const [value, lengths]: unknown[] = Array.isArray(parsed) ? parsed : [];
  if (!Array.isArray(lengths)) throw new Error("the frame names no arrays");
  let at = headEnd;
  unread = lengths.map((length: unknown) => {
    const from = at;
    if (!Number.isSafeInteger(length) || Number(length) < 0) throw new Error("an array's length");
    at += Number(length);
    if (at > bytes.length) throw new Error("the frame ends within an array");
    return bytes.subarray(from, at);
  });
  if (at !== bytes.length) throw new Error("the frame is longer than its arrays");
  return value;
}

/** A view of the frame's bytes, valid as long as those are. */
export const view = v.pipe(
  v.number(),
  v.rawTransform(({ dataset, addIssue, NEVER }): Uint8Array => {
    const bytes = unread[dataset.value];
    unread[dataset.value] = null;
    if (bytes) return bytes;
    addIssue({ message: "there is no such array" });
    return NEVER;
  }),
);

/** A copy: the frame's bytes need not be aligned, and belong to the socket. */
const buffer = v.pipe(
  view,
  v.transform((bytes): ArrayBuffer => new Uint8Array(bytes).buffer),
);

const wholeWords = v.pipe(
  buffer,
  v.check((bytes) => bytes.byteLength % WORD_BYTES === 0, "it ends within a word"),
);

export const words = v.pipe(
  wholeWords,
  v.transform((bytes): Int32Array => new Int32Array(bytes)),
);

export const floats = v.pipe(
  wholeWords,
  v.transform((bytes): Float32Array => new Float32Array(bytes)),
);
