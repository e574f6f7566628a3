import { expect, test } from "bun:test";
import { InvalidFieldError } from "../core/base/errors.ts";
import { IdText } from "./id-text.ts";

test("ids as text: tokens are named, in pieces as at once, and texts are refused", () => {
  const text = new IdText(10);
  const detokenizer = text.detokenizer();
  const pieces = [[1], [], [2, 3], [4]].map((tokens) => detokenizer.push(tokens));
  expect(pieces.join("") + detokenizer.flush()).toBe(text.decode([1, 2, 3, 4]));
  expect(text.decode([7])).toBe("token_id:7");
  expect(() => text.encode()).toThrow(InvalidFieldError);
  expect(() => text.renderChat()).toThrow("--tokenizer");
});
