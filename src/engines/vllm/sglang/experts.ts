// SGLang reports experts as the bare 32-bit numbers of all rows; the rollout pieces arrays of numpy's format together.

/** A row is what all layers of a position chose, which nothing here tells apart. null: they are not so many rows. */
export function npyOfRows(numbers: Uint8Array, rows: number): Uint8Array | null {
  const width = numbers.byteLength / 4 / rows;
  if (rows < 1 || !Number.isInteger(width) || width < 1) return null;
  const text = `{'descr': '<i4', 'fortran_order': False, 'shape': (${rows}, ${width}), }`;
  const length = Math.ceil((text.length + 1 + HEAD_BYTES) / ALIGNMENT) * ALIGNMENT - HEAD_BYTES;
  const header = Buffer.alloc(HEAD_BYTES + length, " ", "latin1");
  header.write("\x93NUMPY\x01\x00", "latin1");
  header.writeUInt16LE(length, 8);
  header.write(text, HEAD_BYTES, "latin1");
  header[header.length - 1] = NEWLINE;
  return Buffer.concat([header, numbers]);
}

const HEAD_BYTES = 10;
const ALIGNMENT = 64;
const NEWLINE = 10;
