import { expect, test } from "bun:test";
import { InvalidFieldError } from "../core/base/errors.ts";
import { groupsOf, type JobOptions, type PromptLine } from "./prompts.ts";

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
  text: { encode: () => Int32Array.of(1, 2), renderChat: () => "chat" },
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

test("groupsOf: messages are rendered, and a template's refusal names the prompt", () => {
  const chat = '{"messages":[]}';
  const line: PromptLine = { line: 3, id: "a", prompt: { kind: "chat", chat }, n: null };
  const text: JobOptions["text"] = {
    encode: (rendered, { addSpecial }) => Int32Array.of(rendered.length, Number(addSpecial)),
    renderChat: (given) => `<${given.length}>`,
  };
  const [group] = groupsOf([line], { ...OPTIONS, text });
  expect([...(group?.prompt ?? [])]).toEqual([4, 0]);
  const renderChat = () => {
    throw new InvalidFieldError({ where: "chat", field: "messages", problem: "are refused" });
  };
  expect(() => groupsOf([line], { ...OPTIONS, text: { ...text, renderChat } })).toThrow(
    'prompts.jsonl:3: prompt "a": messages are refused',
  );
});
