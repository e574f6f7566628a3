import { expect, test } from "bun:test";
import { unknownName } from "./unknown-name.ts";

const KNOWN = ["max_tokens", "n", "temperature", "top_p"];

test.each([
  ["maxTokens", "did you mean max_tokens?"],
  ["max-token", "did you mean max_tokens?"],
  ["temprature", "did you mean temperature?"],
  ["budget", "known are max_tokens, n, temperature, top_p"],
  ["x".repeat(1_000_000), "known are max_tokens"],
])("unknownName: %p is answered", (name, answer) => {
  expect(unknownName(name, KNOWN)).toContain(answer);
});
