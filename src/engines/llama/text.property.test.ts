// The two implementations of the Text port against each other, on the two forms of the same model.

import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { HF_FOLDER, sharedModel, skipReason } from "../../../test/llama/engine-fixture.ts";
import { temporaryFolder } from "../../../test/suite/temporary-folder.ts";
import { openHuggingFaceText } from "../../text/hugging-face.ts";
import type { Text } from "../../text/text.ts";

/**
 * Scripts of the higher planes, among them those that are new in Unicode 16 (JavaScript's tables): libllama's tables are
 * older, so a new letter or digit is split off in another way there. Emoji stay.
 */
const YOUNG = /[\u{10000}-\u{1f0ff}\u{20000}-\u{10ffff}]/gu;

const textArbitrary = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        "<|user|>",
        "<|assistant|>",
        "<|end|>",
        "<think>",
        "3*7=21 left 21 8",
        "\n\n",
      ),
      fc.string({ unit: "grapheme", maxLength: 12 }),
      fc.string({ unit: "binary", maxLength: 6 }).map((text) => text.toWellFormed()),
      fc.integer({ min: 0, max: 99_999 }).map(String),
      fc.constantFrom(" ", "  ", "\t", "\r\n", "漢字", "🦊", "e\u0301", "don't", "\ufeff"),
    ),
    { maxLength: 12 },
  )
  .map((parts) => parts.join("").replace(YOUNG, ""));

const chatOf = (messages: readonly object[], fields: object = {}) =>
  JSON.stringify({ messages, ...fields });

describe.skipIf(skipReason !== null)("both texts", () => {
  const llama = (): Text => sharedModel().tokenizer;
  const hf = openHuggingFaceText(HF_FOLDER);

  test("encode: the same ids, and decode gives the text back", () => {
    fc.assert(
      fc.property(textArbitrary, fc.boolean(), (text, addSpecial) => {
        const ids = hf.encode(text, { addSpecial });
        expect([...llama().encode(text, { addSpecial })]).toEqual([...ids]);
        for (const one of [hf, llama()]) expect(one.decode(ids, { skipSpecial: false })).toBe(text);
      }),
      { numRuns: 500 },
    );
  });

  test("bytes, decode: every token is the same, special or not", () => {
    expect(hf.vocabularySize).toBe(llama().vocabularySize);
    for (let token = 0; token < hf.vocabularySize; token += 1) {
      expect(hf.bytes(token)).toEqual(llama().bytes(token));
      const skip = { skipSpecial: true };
      expect(hf.decode([token], skip)).toBe(llama().decode([token], skip));
    }
    expect(hf.decode([1357, 10, 1359], { skipSpecial: true })).not.toContain("<|");
    for (const text of [hf, llama()]) {
      for (const token of [-1, 1.5, 1376]) expect(() => text.bytes(token)).toThrow("decode: token");
    }
  });

  test("detokenizer: however tokens are split, the pieces are the text that decode gives", () => {
    const tokens = fc.oneof(
      fc.array(fc.nat(1375), { maxLength: 30 }),
      textArbitrary.map((text) => [...hf.encode(text, { addSpecial: false })]),
    );
    const cuts = fc.array(fc.nat(4), { minLength: 30, maxLength: 30 });
    fc.assert(
      fc.property(tokens, cuts, fc.boolean(), (ids, sizes, skipSpecial) => {
        for (const text of [hf, llama()]) {
          const detokenizer = text.detokenizer({ skipSpecial });
          let all = "";
          let at = 0;
          for (const size of sizes) {
            all += detokenizer.push(ids.slice(at, at + size));
            at += size;
          }
          all += detokenizer.push(ids.slice(at)) + detokenizer.flush();
          expect(all).toBe(text.decode(ids, { skipSpecial }));
        }
      }),
      { numRuns: 300 },
    );
  });

  test("renderChat: the same prompt, which ends as it was asked to", () => {
    const turns = [
      { role: "user", content: "sort 9 27 4" },
      { role: "assistant", content: "<think>\n9 27 " },
    ];
    for (const text of [hf, llama()]) {
      expect(text.renderChat(chatOf(turns.slice(0, 1)))).toBe("<|user|>sort 9 27 4<|assistant|>");
      const closed = text.renderChat(chatOf(turns, { add_generation_prompt: false }));
      expect(closed).toBe("<|user|>sort 9 27 4<|assistant|><think>\n9 27 <|end|>");
      const open = { add_generation_prompt: false, continue_final_message: true };
      expect(text.renderChat(chatOf(turns, open))).toBe(
        "<|user|>sort 9 27 4<|assistant|><think>\n9 27 ",
      );
    }
  });
});

describe("the files of a Hugging Face model", () => {
  const folder = temporaryFolder("text");
  const write = (name: string, value: unknown): void =>
    writeFileSync(join(folder, name), typeof value === "string" ? value : JSON.stringify(value));
  const added = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  const tokenizer = {
    added_tokens: [{ id: 5, content: "<s>", special: true, ...added }],
    normalizer: null,
    post_processor: null,
    pre_tokenizer: { type: "Metaspace", replacement: "▁", prepend_scheme: "never" },
    decoder: {
      type: "Sequence",
      decoders: [
        { type: "Replace", pattern: { String: "▁" }, content: " " },
        { type: "ByteFallback" },
        { type: "Fuse" },
      ],
    },
    model: {
      type: "BPE",
      vocab: { a: 0, "▁": 1, "<0xC3>": 2, "<0xA9>": 3, "▁a": 4 },
      merges: ["▁ a"],
      byte_fallback: true,
    },
  };

  test("byte tokens make up characters, and ids beyond the tokenizer's stand for nothing", () => {
    write("tokenizer.json", tokenizer);
    write("config.json", { vocab_size: 8 });
    const text = openHuggingFaceText(folder);
    expect(text.decode([5, 4, 2, 3, 7], { skipSpecial: false })).toBe("<s> aé");
    expect([...text.encode("a aé", { addSpecial: false })]).toEqual([0, 4, 2, 3]);
    expect(text.vocabularySize).toBe(8);
    expect(() => text.renderChat(chatOf([]))).toThrow("the model has none");
    // Models of text and images; and a model that has more ids than its files say.
    write("config.json", { text_config: { vocab_size: 9 } });
    expect(openHuggingFaceText(folder).vocabularySize).toBe(9);
    expect(openHuggingFaceText(folder, 12).detokenizer({ skipSpecial: true }).push([11])).toBe("");
  });

  test("a template in tokenizer_config.json sees the named tokens, tools and variables, and may refuse", () => {
    const source =
      "{{ bos_token }}{% if tools %}{{ tools | length }} tools {% endif %}{{ mood }}" +
      "{% if messages | length == 0 %}{{ raise_exception('nothing to say') }}{% endif %}";
    write("tokenizer_config.json", {
      bos_token: { content: "<s>" },
      chat_template: [{ name: "default", template: source }],
    });
    const text = openHuggingFaceText(folder);
    const say = { role: "user", content: "x" };
    const tools = [1, 2].map(() => ({ type: "function", function: { name: "f" } }));
    const options = { tools, chat_template_kwargs: { mood: "calm" } };
    expect(text.renderChat(chatOf([say], options))).toBe("<s>2 tools calm");
    expect(() => text.renderChat(chatOf([], options))).toThrow("nothing to say");
  });

  test("a file that is absent, no JSON, or of an unknown kind is model_unreadable, by name", () => {
    for (const content of ["{", { ...tokenizer, decoder: { type: "CTC" } }]) {
      write("tokenizer.json", content);
      expect(() => openHuggingFaceText(folder)).toThrow("tokenizer.json");
    }
    const absent = join(folder, "absent");
    expect(() => openHuggingFaceText(absent)).toThrow(`${absent}: there is no such folder`);
    const file = join(folder, "tokenizer_config.json");
    expect(() => openHuggingFaceText(file)).toThrow(
      `${file}: is a file; a tokenizer is the folder`,
    );
  });
});
