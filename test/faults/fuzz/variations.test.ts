// What the fuzzer keeps of the texts that it varies.

import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import { Dice } from "../attacks/settings.ts";
import { editedText } from "./variations.ts";

function heapBytes(): number {
  Bun.gc(true);
  const { heapSize, extraMemorySize } = heapStats();
  return heapSize + extraMemorySize;
}

test("variations: what is known of a text takes a few times its bytes", () => {
  const text = JSON.stringify(
    Array.from({ length: 500 }, (_, at) => ({ token: "é", logprob: at })),
  );
  const bases = Array.from({ length: 300 }, () => new TextEncoder().encode(text));
  const before = heapBytes();
  for (const [at, base] of bases.entries()) {
    // Every form of edit, so that one of them looks for the text's tokens.
    for (let key = 0; key < 8; key += 1) editedText(base, base, new Dice(8 * at + key));
  }
  const kept = heapBytes() - before;
  expect(kept / (bases.length * (bases[0]?.length ?? 0))).toBeLessThan(6);
});
