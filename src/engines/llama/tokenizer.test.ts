import { describe, expect, test } from "bun:test";
import { sharedModel, skipReason } from "../../../test/llama/engine-fixture.ts";

describe.skipIf(skipReason !== null)("tokenizer", () => {
  const tokenizer = () => sharedModel().tokenizer;

  test("encode: special tokens in the text become their ids, and nothing is added", () => {
    const ids = tokenizer().encode("<|user|>total 6 2 6<|assistant|>");
    expect(ids[0]).toBe(1357);
    expect(ids.at(-1)).toBe(1358);
    expect([...tokenizer().encode("<|end|>")]).toEqual([1359]);
    expect(tokenizer().encode("").length).toBe(0);
  });

  test("decode: gives back any text, characters split over tokens included", () => {
    const text = "<think>\n3*7=21 left 21 8 naïve 漢字 🦊 é\u0301 \ufeff</think>";
    const ids = tokenizer().encode(text);
    expect(ids.length).toBeGreaterThan(text.length / 2);
    expect(tokenizer().decode(ids)).toBe(text);
  });

  test("decode: half of a character is U+FFFD, not an error", () => {
    const ids = tokenizer().encode("🦊");
    expect(ids.length).toBeGreaterThan(1);
    expect(tokenizer().decode(ids.subarray(0, 1))).toContain("\ufffd");
  });

  test("decode: a token outside the vocabulary is an invalid field", () => {
    for (const token of [-1, 1376, 1.5]) {
      expect(() => tokenizer().decode([token])).toThrow("decode: token");
    }
  });
});
