import { expect, test } from "bun:test";
import { groupsOf, type JobOptions } from "./job.ts";
import type { PromptLine } from "./prompts.ts";

const LINE: PromptLine = { line: 3, id: "a", prompt: { kind: "text", text: "one" }, n: null };
const OPTIONS: JobOptions = {
  path: "prompts.jsonl",
  groupSize: 2,
  maxTokens: 8,
  temperature: 1,
  seed: 42,
  kvTokens: 64,
  contextTokens: 32,
  vocabularySize: 100,
  stopTokenIds: [7],
  encode: () => Int32Array.of(1, 2),
};

test("groupsOf: a prompt becomes a group of its size", () => {
  const [group] = groupsOf([LINE], OPTIONS);
  expect(group).toMatchObject({ groupId: "a", size: 2, sampling: { tokensMax: 8, seed: 42 } });
});

test("groupsOf: sampling out of bounds is refused before anything runs", () => {
  for (const temperature of [1e-320, Number.POSITIVE_INFINITY, Number.NaN, -1]) {
    expect(() => groupsOf([LINE], { ...OPTIONS, temperature })).toThrow(
      `temperature is ${temperature}, not 0 or in 1e-10..1000000`,
    );
  }
  expect(() => groupsOf([LINE], { ...OPTIONS, maxTokens: 31 })).toThrow("context of 32");
});
