// The experts that each token of a request was routed to (rollout routing replay, R3), as engines report them: rows of bytes,
// one for each position, whose content is never read. Every chunk brings an .npy file; here they become one.

/** An array as an .npy file holds it, the first axis being its rows. */
export interface NpyArray {
  /** numpy's name of the element type: "|u1". */
  readonly type: string;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** The header of a file of version 1, as numpy writes it. */
const HEADER =
  /^\{'descr': '([^']+)', 'fortran_order': False, 'shape': \((\d+(?:, \d+)*),?\), \} *\n$/;
const MAGIC = Buffer.from("\x93NUMPY\x01\x00", "latin1");
const HEAD_BYTES = 10;
/** numpy pads its header so that the data begins at a multiple of this. */
const ALIGNMENT = 64;

export class ExpertRows {
  /** Position in prompt + output of the first row. */
  readonly start: number;
  readonly #parts: NpyArray[] = [];
  #count = 0;

  constructor(start: number) {
    this.start = start;
  }

  get end(): number {
    return this.start + this.#count;
  }

  get bytes(): number {
    return this.#parts.reduce((sum, { bytes }) => sum + bytes.byteLength, 0);
  }

  /** Appends rows whose first is for position `from`, and skips those it has. Returns what is wrong with them, or null. */
  append(from: number, npy: Uint8Array): string | null {
    const array = arrayIn(npy);
    if (array === null) return "are not an array in numpy's format";
    const { type, shape, bytes } = array;
    const [count = 0] = shape;
    const form = formOf(array);
    const before = formOf(this.#parts[0] ?? array);
    if (form !== before) return `have the type and shape ${form}, not ${before} as before`;
    const skipped = this.end - from;
    if (skipped < 0) return `begin at position ${from}, but ${this.end} is the next one`;
    if (skipped >= count) return null;
    // A copy: the engine's answer, which these bytes are a part of, is not kept for them.
    const fresh = bytes.slice((skipped * bytes.byteLength) / count);
    this.#parts.push({ type, shape, bytes: fresh });
    this.#count += count - skipped;
    return null;
  }

  /** All rows as one .npy file; null: there is none. */
  npy(): Uint8Array | null {
    const array = this.array();
    return array && npyOf(array);
  }

  /** All rows; null: there is none. */
  array(): NpyArray | null {
    const [first] = this.#parts;
    if (first === undefined) return null;
    const bytes = new Uint8Array(this.bytes);
    let at = 0;
    for (const part of this.#parts) {
      bytes.set(part.bytes, at);
      at += part.bytes.byteLength;
    }
    return { type: first.type, shape: [this.#count, ...first.shape.slice(1)], bytes };
  }
}

/** The array of an .npy file; null: it is none, or its length does not match its header. */
function arrayIn(npy: Uint8Array): NpyArray | null {
  const file = Buffer.from(npy.buffer, npy.byteOffset, npy.byteLength);
  if (npy.byteLength < HEAD_BYTES || MAGIC.compare(file, 0, MAGIC.length) !== 0) return null;
  const end = HEAD_BYTES + file.readUInt16LE(8);
  const [, type, axes] = HEADER.exec(file.toString("latin1", HEAD_BYTES, end)) ?? [];
  if (type === undefined || axes === undefined) return null;
  const shape = axes.split(", ").map(Number);
  const [count = 0, ...others] = shape;
  const itemBytes = Number(/\d+$/.exec(type)?.[0] ?? 0);
  const width = others.reduce((product, axis) => product * axis, itemBytes);
  const bytes = new Uint8Array(file.subarray(end));
  return width === 0 || bytes.byteLength !== count * width ? null : { type, shape, bytes };
}

function formOf({ type, shape }: NpyArray): string {
  return `${type} and (n, ${shape.slice(1).join(", ")})`;
}

/** An .npy file, as numpy writes it. */
export function npyOf({ type, shape, bytes }: NpyArray): Uint8Array {
  const text = `{'descr': '${type}', 'fortran_order': False, 'shape': (${shape.join(", ")}), }`;
  const length = Math.ceil((HEAD_BYTES + text.length + 1) / ALIGNMENT) * ALIGNMENT - HEAD_BYTES;
  const head = Buffer.alloc(HEAD_BYTES);
  MAGIC.copy(head);
  head.writeUInt16LE(length, 8);
  return Buffer.concat([head, Buffer.from(`${text.padEnd(length - 1)}\n`, "latin1"), bytes]);
}
