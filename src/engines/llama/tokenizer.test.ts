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

  test("decode: a token outside the vocabulary is an invalid field", () => {
    for (const token of [-1, 1376, 1.5]) {
      expect(() => tokenizer().decode([token])).toThrow("decode: token");
    }
  });
});
