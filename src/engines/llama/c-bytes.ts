// JavaScript memory whose address C may keep.

/** Bytes with an ArrayBuffer of their own, since a small typed array without one may be moved in memory. */
export function nativeBytes(bytes: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new ArrayBuffer(bytes));
}

/** `text` as UTF-8 with a final zero. */
export function cString(text: string): Uint8Array<ArrayBuffer> {
  const utf8 = new TextEncoder().encode(text);
  const bytes = nativeBytes(utf8.length + 1);
  bytes.set(utf8);
  return bytes;
}
