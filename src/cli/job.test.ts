import { expect, test } from "bun:test";
import { InvalidFieldError } from "../core/base/errors.ts";
import type { Text } from "../text/text.ts";
import { checkRoom, type PromptFile, type PromptLine, planOfPrompts } from "./prompts.ts";

const LINE: PromptLine = { line: 3, group: { id: "a", prompt: "one" }, source: "" };

function modelOf(own: Partial<Text>): PromptFile["model"] {
  const encode = (text: string) => Int32Array.from([...text].slice(0, 2).keys());
  const text = { vocabularySize: 100, encode, renderChat: () => "chat", ...own } as Text;
  return { text, eosTokenIds: [7], llama: null };
}

const PROMPTS: PromptFile = {
  path: "prompts.jsonl",
  lines: [LINE],
  groupSize: 2,
  maxTokens: 8,
  temperature: 1,
  seed: 42,
  model: modelOf({}),
};

test("planOfPrompts: a prompt becomes a group of its size, with sampling parameters of its own", async () => {
  const own = {
    line: 4,
    group: { id: "b", prompt: "x", n: 3, sampling_params: { max_tokens: 5 } },
    source: "",
  };
  const { groups } = await planOfPrompts({ ...PROMPTS, lines: [LINE, own] });
  expect(groups[0]).toMatchObject({ id: "a", n: 2, seeded: true });
  expect(groups[0]?.sampling).toMatchObject({ tokensMax: 8, seed: 42, stopTokenIds: [7] });
  expect(groups[1]).toMatchObject({ n: 3, sampling: { tokensMax: 5, seed: 42 } });
});

test("planOfPrompts: sampling out of bounds is refused before anything runs", async () => {
  for (const temperature of [1e-320, Number.POSITIVE_INFINITY, Number.NaN, -1]) {
    expect(planOfPrompts({ ...PROMPTS, temperature })).rejects.toThrow(
      `temperature is ${temperature}, not 0 or in 1e-10..1000000`,
    );
  }
});

test("checkRoom: names the prompt that has no room in the context, or in a worker's KV", async () => {
  const prompts = { ...PROMPTS, maxTokens: 31 };
  const plan = await planOfPrompts(prompts);
  const check = (contextTokens: number, kvTokens: number) => {
    const capacity = { slots: 1, contextTokens, kvTokens, kvBytesPerToken: 8 };
    return () => checkRoom(plan, prompts, [{ capacity }]);
  };
  expect(check(33, 33)).not.toThrow();
  const about = 'prompts.jsonl:3: prompt "a" has 2 tokens; with --max-tokens 31 that is 33, ';
  expect(check(32, 64)).toThrow(`${about}more than the model's context of 32`);
  expect(check(64, 32)).toThrow(`${about}more than a worker's whole KV budget, --kv-tokens 32`);
});

test("planOfPrompts: messages are rendered, and a template's refusal names the prompt", async () => {
  const messages = [{ role: "user", content: "hi" }];
  const line = { line: 3, group: { id: "a", messages }, source: '{"messages":[1]}' };
  const text: Partial<Text> = {
    encode: (rendered, { addSpecial }) => Int32Array.of(rendered.length, Number(addSpecial)),
    renderChat: (given) => `<${given}>`,
  };
  const { groups } = await planOfPrompts({ ...PROMPTS, lines: [line], model: modelOf(text) });
  const rendered = '<{"messages":[1],"max_completion_tokens":1}>';
  expect([...(groups[0]?.prompt ?? [])]).toEqual([rendered.length, 0]);
  const renderChat = () => {
    throw new InvalidFieldError({ where: "chat", field: "messages", problem: "are refused" });
  };
  const refusing = { ...PROMPTS, lines: [line], model: modelOf({ ...text, renderChat }) };
  expect(planOfPrompts(refusing)).rejects.toThrow(
    'prompts.jsonl:3: prompt "a": messages are refused',
  );
});
