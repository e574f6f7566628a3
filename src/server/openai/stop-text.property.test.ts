// Stop strings against a slow twin that looks at the whole text after every token.

import { expect, test } from "bun:test";
import fc from "fast-check";
import type { Detokenizer } from "../../text/text.ts";
import { StopText } from "./output.ts";

/** Few characters, so that stop strings are met; some tokens are parts of characters. */
const TOKENS: readonly number[][] = [
  [97],
  [98],
  [97, 98],
  [98, 97, 97],
  [0xc3],
  [0xa9],
  [0xf0, 0x9f],
  [0x98, 0x80],
  [97, 0xc3],
  [],
];

function detokenizer(): Detokenizer {
  const decoder = new TextDecoder();
  return {
    push: (tokens) =>
      Array.from(tokens)
        .map((token) => decoder.decode(Uint8Array.from(TOKENS[token] ?? []), { stream: true }))
        .join(""),
    flush: () => decoder.decode(),
  };
}

interface Options {
  readonly strings: readonly string[];
  readonly keepStop: boolean;
  readonly tokensMin: number;
}

/** The text after each number of tokens, from the beginning every time. */
function slow(tokens: readonly number[], options: Options) {
  let before = "";
  for (let count = 1; count <= tokens.length + 1; count += 1) {
    const decoder = detokenizer();
    let text = decoder.push(tokens.slice(0, count));
    if (count > tokens.length) text += decoder.flush();
    for (const stop of count > options.tokensMin ? options.strings : []) {
      const at = text.indexOf(stop, Math.max(0, before.length - stop.length + 1));
      if (at < 0 || text.length === before.length) continue;
      const end = options.keepStop ? at + stop.length : at;
      return { text: text.slice(0, end), stopped: stop, taken: Math.min(count, tokens.length) };
    }
    before = text;
  }
  return { text: before, stopped: null, taken: tokens.length };
}

const pieces = fc.constantFrom("a", "b", "é", "😀");
const scenarios = fc.record({
  tokens: fc.array(fc.nat({ max: TOKENS.length - 1 }), { maxLength: 40 }),
  strings: fc.array(
    fc.array(pieces, { minLength: 1, maxLength: 4 }).map((parts) => parts.join("")),
    { maxLength: 3 },
  ),
  keepStop: fc.boolean(),
  tokensMin: fc.nat({ max: 10 }),
  cuts: fc.array(fc.nat({ max: 40 }), { maxLength: 8 }),
});

function fast(tokens: readonly number[], options: Options, cuts: readonly number[]) {
  const text = new StopText(detokenizer(), options);
  const ends = [...new Set([...cuts.filter((cut) => cut < tokens.length), tokens.length])];
  let from = 0;
  let taken = 0;
  for (const end of ends.sort((a, b) => a - b)) {
    if (text.stopped === null) taken += text.push(Int32Array.from(tokens.slice(from, end)));
    from = end;
  }
  text.end();
  return { text: text.pieces.join(""), stopped: text.stopped, taken };
}

test("stop strings: the cut is that of the whole text, however the tokens come", () => {
  fc.assert(
    fc.property(scenarios, ({ tokens, cuts, ...options }) => {
      expect(fast(tokens, options, cuts)).toEqual(slow(tokens, options));
    }),
    { numRuns: 2000 },
  );
});

test("stop strings: what has been given out is never taken back, nor half a character", () => {
  fc.assert(
    fc.property(scenarios, ({ tokens, ...options }) => {
      const { text: whole } = slow(tokens, options);
      const text = new StopText(detokenizer(), options);
      for (const token of tokens) {
        text.push(Int32Array.of(token));
        expect(whole.startsWith(text.pieces.join(""))).toBe(true);
      }
      text.end();
      for (const piece of text.pieces) expect(piece.isWellFormed()).toBe(true);
    }),
    { numRuns: 1000 },
  );
});
