import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { temporaryFolder } from "../../test/suite/temporary-folder.ts";
import { AppError, InvalidFieldError } from "../core/base/errors.ts";
import type { Text } from "../text/text.ts";
import {
  checkRoom,
  LINE_BYTES_MAX,
  loadPrompts,
  type PromptFile,
  type PromptLine,
  planOfPrompts,
} from "./prompts.ts";

const root = temporaryFolder("prompts");

let files = 0;
function fileOf(content: string | Uint8Array): string {
  files += 1;
  const path = join(root, `${files}.jsonl`);
  writeFileSync(path, content);
  return path;
}

function load(content: string | Uint8Array, limit: number | null = null): Promise<PromptLine[]> {
  return loadPrompts(fileOf(content), { vocabularySize: 100, limit });
}

async function refusal(content: string | Uint8Array): Promise<{ code: string; message: string }> {
  try {
    await load(content);
  } catch (error) {
    if (error instanceof AppError) {
      return {
        code: error.code,
        message: error.message.slice(error.message.indexOf(".jsonl") + 6),
      };
    }
    throw error;
  }
  throw new Error("was not refused");
}

test("loadPrompts: reads text, token ids and n, and keeps lines as they are written", async () => {
  const written = [
    '{"id": "a", "prompt": "two words"}',
    '{"id": "b", "token_ids": [0, 99, 7], "n": 256}',
    '{"id": "c", "messages": [{"role": "user", "content": "hi"}], "tools": [{"2":1.0,"1":2}]}',
  ];
  const messages = [{ role: "user", content: "hi" }];
  expect(await load(`${written.join("\n")}\n`)).toEqual([
    { line: 1, group: { id: "a", prompt: "two words" }, source: written[0] ?? "" },
    { line: 2, group: { id: "b", token_ids: [0, 99, 7], n: 256 }, source: written[1] ?? "" },
    { line: 3, group: { id: "c", messages, tools: [{ 1: 2, 2: 1 }] }, source: written[2] ?? "" },
  ]);
});

test("loadPrompts: takes CRLF, a byte order mark, blank lines and a last line without its end", async () => {
  const prompts = await load('\uFEFF{"id":"a","prompt":"x"}\r\n\r\n  \n{"id":"b","prompt":"y"}');
  expect(prompts.map(({ line, group }) => [line, group.id])).toEqual([
    [1, "a"],
    [4, "b"],
  ]);
});

test("loadPrompts: characters cut anywhere by the reads come out whole", async () => {
  // 64 KiB reads: every offset of a 4-byte character falls on a boundary somewhere in here.
  const lines = Array.from({ length: 60 }, (_, i) =>
    JSON.stringify({ id: `id${i}`, prompt: `${"x".repeat(i)}${"🧮".repeat(1500)}` }),
  );
  const prompts = await load(lines.join("\n"));
  expect(prompts).toHaveLength(60);
  for (const [i, { group }] of prompts.entries()) {
    expect(group.prompt).toBe(`${"x".repeat(i)}${"🧮".repeat(1500)}`);
  }
});

const good = '{"id":"a","prompt":"x"}\n';

const refused: [name: string, content: string, code: string, ...parts: string[]][] = [
  ["malformed JSON", `${good}{"id": "b", "prompt": }\n`, "invalid_json", ":2: ", "not valid JSON"],
  ["a cut last line", `${good}{"id": "b", "pro`, "invalid_json", ":2: ", "not valid JSON"],
  ["a missing id", `${good}\n{"prompt":"x"}`, "invalid_field", ":3: id is missing"],
  [
    "an endless id",
    `{"id":"${"x".repeat(257)}","prompt":"x"}`,
    "invalid_field",
    "id has more than 256",
  ],
  ["a second use of an id", `${good}${good}`, "invalid_field", ':2: id is "a", as on line 1'],
  ["neither prompt nor ids", '{"id":"a"}', "invalid_field", ":1: prompt is missing", "token_ids"],
  ["both", '{"id":"a","prompt":"x","token_ids":[1]}', "invalid_field", "one of them"],
  ["no messages", '{"id":"a","messages":[]}', "invalid_field", ":1: messages is empty"],
  ["half a surrogate pair", '{"id":"a","prompt":"\\ud800"}', "invalid_field", "half a character"],
  [
    "a token beyond the vocabulary",
    '{"id":"a","token_ids":[1,100]}',
    "invalid_field",
    "token_ids.1 is 100, not in 0..99",
  ],
  [
    "n of 0",
    '{"id":"a","prompt":"x","n":0}',
    "invalid_field",
    ":1: n is 0, not a whole number in 1..256",
  ],
  [
    "an unknown field",
    '{"id":"a","prompt":"x","max":1}',
    "invalid_field",
    ":1: max is not known; known are",
    "token_ids",
  ],
  ["an empty file", "", "invalid_json", ": holds no prompt"],
  ["a file of blank lines", "\n \r\n\n", "invalid_json", ": holds no prompt"],
];

for (const [name, content, code, ...parts] of refused) {
  test(`loadPrompts: refuses ${name}`, async () => {
    const error = await refusal(content);
    expect(error.code).toBe(code);
    for (const part of parts) expect(error.message).toContain(part);
    expect(error.message).not.toContain("\n");
    expect(error.message.length).toBeLessThan(400);
  });
}

test("loadPrompts: refuses bytes that are not UTF-8, and names the line", async () => {
  const bytes = Buffer.concat([Buffer.from(good), Buffer.from([0x7b, 0xff, 0xfe, 0x7d, 0x0a])]);
  expect(await refusal(bytes)).toEqual({ code: "invalid_json", message: ":2: is not UTF-8" });
});

test("loadPrompts: refuses an endless line before it is in memory", async () => {
  const error = await refusal(Buffer.alloc(LINE_BYTES_MAX + 1, 0x20));
  expect(error.code).toBe("invalid_json");
  expect(error.message).toContain(`longer than ${LINE_BYTES_MAX} bytes`);
});

test("loadPrompts: a file that is not there, and a directory, are named with the reason", async () => {
  for (const [path, reason] of [
    [join(root, "nothing.jsonl"), "nothing.jsonl: there is no such file"],
    [root, `${root}: is a folder`],
  ] as const) {
    const loading = loadPrompts(path, { vocabularySize: 100, limit: null });
    expect(loading).rejects.toMatchObject({ code: "usage" });
    expect(loading).rejects.toThrow(reason);
    expect(loading).rejects.toThrow("cannot read");
    await loading.catch(() => undefined);
  }
});

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

test("planOfPrompts: a chat may be as long as a line", async () => {
  const text: Partial<Text> = {
    encode: (input) => new Int32Array(input.length / 4),
    renderChat: (chat) => JSON.parse(chat).messages[0].content,
  };
  const messages = [{ role: "user", content: "long".repeat(2 ** 20) }];
  const lines = await load(JSON.stringify({ id: "a", messages }));
  const { groups } = await planOfPrompts({ ...PROMPTS, lines, model: modelOf(text) });
  expect(groups[0]?.prompt).toHaveLength(2 ** 20);
});
