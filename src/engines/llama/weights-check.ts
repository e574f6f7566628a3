// Tries weights before anything that serves has them: loads the file, encodes and decodes text, generates tokens.
// What is damaged ends in an AppError, or ends the process: so only a child process calls this.

import { generateWith } from "./canary.ts";
import type { LlamaLibrary } from "./native.ts";
import { LlamaTokenizer } from "./tokenizer.ts";
import { LlamaWeights } from "./weights.ts";

/** Tokens of one text: what is written out costs more than in proportion. */
const TEXT_TOKENS = 4096;

/** Every byte that can be in a text, and characters of two to four bytes. */
const TEXT_SAMPLE = [
  ...Array.from({ length: 0x800 }, (_, code) => String.fromCodePoint(code)),
  "\u{20ac}\u{4e2d}\u{6587}\u{ffff}\u{1f600}\u{10ffff} a word, 1234 and\n\ttwo  blanks",
].join("");

/** @throws AppError model_unreadable: weights that no engine can serve with. */
export function checkWeights(library: LlamaLibrary, path: string, name: string): void {
  const model = LlamaWeights.load(library, path, { name, isTrial: true });
  try {
    generateWith(model);
  } finally {
    model.free();
  }
}

/** @throws AppError model_unreadable: a vocabulary or a chat template that cannot be used. */
export function checkTokenizer(library: LlamaLibrary, path: string, name: string): void {
  const tokenizer = LlamaTokenizer.load(library, path, name);
  tokenizer.decode(tokenizer.encode(TEXT_SAMPLE, { addSpecial: true }));
  for (let from = 0; from < tokenizer.vocabularySize; from += TEXT_TOKENS) {
    const count = Math.min(TEXT_TOKENS, tokenizer.vocabularySize - from);
    const tokens = Int32Array.from({ length: count }, (_, i) => from + i);
    for (const token of tokens) tokenizer.isSpecial(token);
    tokenizer.encode(tokenizer.decode(tokens));
  }
  tokenizer.close();
}
