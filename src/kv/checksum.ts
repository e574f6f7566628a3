// The checksum of a KV blob: XXH32 (Collet, specification v0.1.1), seed 0. It finds accidents: a flipped
// bit, a torn or foreign file. Every change within one 32-bit word is found for certain (each step is a
// bijection of the word), any other with probability 1 - 2^-32. Names are another matter: see key.ts.

const P1 = 0x9e3779b1 | 0;
const P2 = 0x85ebca77 | 0;
const P3 = 0xc2b2ae3d | 0;
const P4 = 0x27d4eb2f | 0;
const P5 = 0x165667b1 | 0;

const rotate = (x: number, bits: number): number => (x << bits) | (x >>> (32 - bits));

/** XXH32 of the whole buffer, as an unsigned 32-bit number. Words are read in the machine's order. */
export function checksum(buffer: ArrayBuffer): number {
  const length = buffer.byteLength;
  const words = new Int32Array(buffer, 0, length >>> 2);
  let next = 0;
  let h: number;
  if (length >= 16) {
    let v1 = (P1 + P2) | 0;
    let v2 = P2;
    let v3 = 0;
    let v4 = -P1 | 0;
    for (const end = words.length & ~3; next < end; next += 4) {
      v1 = Math.imul(rotate(v1 + Math.imul(words[next] as number, P2), 13), P1);
      v2 = Math.imul(rotate(v2 + Math.imul(words[next + 1] as number, P2), 13), P1);
      v3 = Math.imul(rotate(v3 + Math.imul(words[next + 2] as number, P2), 13), P1);
      v4 = Math.imul(rotate(v4 + Math.imul(words[next + 3] as number, P2), 13), P1);
    }
    h = (rotate(v1, 1) + rotate(v2, 7) + rotate(v3, 12) + rotate(v4, 18)) | 0;
  } else {
    h = P5;
  }
  h = (h + length) | 0;
  for (; next < words.length; next += 1) {
    h = Math.imul(rotate(h + Math.imul(words[next] as number, P3), 17), P4);
  }
  const bytes = new Uint8Array(buffer, next * 4);
  for (let i = 0; i < bytes.length; i += 1) {
    h = Math.imul(rotate(h + Math.imul(bytes[i] as number, P5), 11), P1);
  }
  h = Math.imul(h ^ (h >>> 15), P2);
  h = Math.imul(h ^ (h >>> 13), P3);
  return (h ^ (h >>> 16)) >>> 0;
}
