import { expect, test } from "bun:test";
import fc from "fast-check";
import { checksum } from "./checksum.ts";

const bytesOf = (text: string): ArrayBuffer => new TextEncoder().encode(text).slice().buffer;

test("checksum: is XXH32 with seed 0", () => {
  // Vectors of the reference implementation.
  expect(checksum(bytesOf(""))).toBe(0x02cc5d05);
  expect(checksum(bytesOf("a"))).toBe(0x550d7456);
  expect(checksum(bytesOf("abc"))).toBe(0x32d153ff);
});

test("checksum: agrees with the runtime's XXH32 at every length", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
      expect(checksum(bytes.slice().buffer)).toBe(Bun.hash.xxHash32(bytes, 0));
    }),
  );
});

test("checksum: any one flipped bit changes it", () => {
  const bytes = Uint8Array.from({ length: 77 }, (_, i) => i * 5);
  const before = checksum(bytes.buffer);
  for (let bit = 0; bit < bytes.length * 8; bit += 1) {
    const flipped = bytes.slice();
    flipped[bit >>> 3] = (flipped[bit >>> 3] ?? 0) ^ (1 << (bit & 7));
    expect(checksum(flipped.buffer)).not.toBe(before);
  }
});
