// The experts that each token of a request was routed to (rollout routing replay, R3), as engines report them: rows of bytes,
// one for each position, whose content is never read. Every chunk brings an .npy file; here they become one.

import { assert } from "../base/assert.ts";

/** An .npy file's rows, without the header. */
interface Rows {
  /** numpy's name of the element type: "|u1". */
  readonly type: string;
  /** Lengths of all axes except the first. */
  readonly shape: string;
  readonly count: number;
  readonly bytes: Uint8Array;
}

const MAGIC = "\x93NUMPY";
/** numpy pads its header so that the data begins at a multiple of this. */
const ALIGNMENT = 64;

export class ExpertRows {
  /** Position in prompt + output of the first row. */
  readonly start: number;
  readonly #parts: Rows[] = [];
  #count = 0;

  constructor(start: number) {
    this.start = start;
  }

  /** Position after the last row. */
  get end(): number {
    return this.start + this.#count;
  }

  get bytes(): number {
    return this.#parts.reduce((sum, { bytes }) => sum + bytes.byteLength, 0);
  }

  /** Appends rows whose first is for position `from`, and skips those it has. Returns what is wrong with them, or null. */
  append(from: number, npy: Uint8Array): string | null {
    const rows = rowsIn(npy);
    if (rows === null) return "are not an array in numpy's format";
    const [first] = this.#parts;
    if (first !== undefined && (rows.type !== first.type || rows.shape !== first.shape)) {
      return `have the type ${rows.type} and the shape (n, ${rows.shape}), not ${first.type} and (n, ${first.shape}) as before`;
    }
    const skipped = this.end - from;
    if (skipped < 0) return `begin at position ${from}, but ${this.end} is the next one`;
    const count = Math.max(0, rows.count - skipped);
    if (count === 0) return null;
    const width = rows.bytes.byteLength / rows.count;
    // A copy: the engine's answer, which these bytes are a part of, is not kept for them.
    const bytes = rows.bytes.slice(skipped * width);
    this.#parts.push({ ...rows, count, bytes });
    this.#count += count;
    return null;
  }

  /** All rows as one .npy file; null: there is none. */
  npy(): Uint8Array | null {
    const array = this.array();
    if (array === null) return null;
    const head = headerOf(`(${array.shape.join(", ")})`, array.type);
    const file = new Uint8Array(head.length + array.bytes.byteLength);
    file.set(head);
    file.set(array.bytes, head.length);
    return file;
  }

  /** All rows, numpy's name of their type, and the lengths of all axes; null: there is none. */
  array(): { type: string; shape: readonly number[]; bytes: Uint8Array<ArrayBuffer> } | null {
    const [first] = this.#parts;
    if (first === undefined) return null;
    const all = new Uint8Array(this.bytes);
    let at = 0;
    for (const { bytes } of this.#parts) {
      all.set(bytes, at);
      at += bytes.byteLength;
    }
    const axes = first.shape.split(", ").map(Number);
    return { type: first.type, shape: [this.#count, ...axes], bytes: all };
  }
}

/** The rows of an .npy file; null: it is no array of rows, or its length does not match its header. */
function rowsIn(npy: Uint8Array): Rows | null {
  const view = new DataView(npy.buffer, npy.byteOffset, npy.byteLength);
  if (npy.byteLength < 12 || latin1(npy.subarray(0, 6)) !== MAGIC) return null;
  const isLong = (npy[6] ?? 0) >= 2;
  const from = isLong ? 12 : 10;
  const length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  if (from + length > npy.byteLength) return null;
  const header = latin1(npy.subarray(from, from + length));
  const type = /'descr':\s*'([^']+)'/.exec(header)?.[1];
  const axes = /'shape':\s*\((\d+(?:\s*,\s*\d+)*)\s*,?\s*\)/.exec(header)?.[1];
  if (type === undefined || axes === undefined || /'fortran_order':\s*True/.test(header))
    return null;
  const [count = 0, ...others] = axes.split(",").map(Number);
  const itemBytes = Number(/\d+$/.exec(type)?.[0] ?? 0);
  const width = others.reduce((product, axis) => product * axis, itemBytes);
  const bytes = npy.subarray(from + length);
  if (width === 0 || bytes.byteLength !== count * width) return null;
  return { type, shape: others.join(", "), count, bytes };
}

function headerOf(shape: string, type: string): Uint8Array {
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': ${shape}, }`;
  const padded = Math.ceil((10 + text.length + 1) / ALIGNMENT) * ALIGNMENT - 10;
  assert(padded < 2 ** 16, "the header of three axes is short");
  const header = new Uint8Array(10 + padded);
  const line = `${MAGIC}\x01\x00${text.padEnd(padded - 1)}\n`;
  for (let i = 0; i < 8; i += 1) header[i] = line.charCodeAt(i);
  new DataView(header.buffer).setUint16(8, padded, true);
  for (let i = 8; i < line.length; i += 1) header[i + 2] = line.charCodeAt(i);
  return header;
}

function latin1(bytes: Uint8Array): string {
  return String.fromCharCode(...bytes);
}
