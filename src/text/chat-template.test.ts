// Chat templates against what Python makes of them: test/golden/chats, written by vLLM's and transformers' own code.

import { expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { membersOf } from "../proto/json.ts";
import { ChatTemplate } from "./chat-template.ts";
import { Scope } from "./jinja/expressions.ts";
import { GLOBALS } from "./jinja/library.ts";
import { parsed } from "./jinja/parser.ts";

const GOLDEN = join(import.meta.dir, "..", "..", "test", "golden", "chats");
const read = (name: string) => readFileSync(join(GOLDEN, name), "utf8");
const TOKENS = { bos_token: "<|pad|>", eos_token: "<|end|>", pad_token: "<|pad|>" };

const templateOf = (source: string, more: Record<string, string> = {}) =>
  new ChatTemplate(new Map(Object.entries({ default: source, ...more })), TOKENS);
const chatOf = (messages: readonly object[], fields: object = {}) =>
  JSON.stringify({ messages, ...fields });

test("table: TRL's 41 templates render 16 chats as vLLM does", () => {
  type Row = { source: string; texts: Record<string, string | null> };
  const golden: Record<string, Row> = JSON.parse(read("golden.json"));
  const chats = membersOf(read("chats.json"));
  const wrong: string[] = [];
  let right = 0;
  let refused = 0;
  for (const [name, { source, texts }] of Object.entries(golden)) {
    const template = templateOf(source);
    expect([name, template.problem]).toEqual([name, null]);
    for (const [chat, text] of chats) {
      let digest: string | null = null;
      try {
        digest = createHash("sha256").update(template.render(text)).digest("hex").slice(0, 16);
      } catch {
        refused += 1;
      }
      if (digest === texts[chat]) right += 1;
      else wrong.push(`${name} x ${chat}`);
    }
  }
  console.log(`${right} of 656 chats as vLLM has them, ${refused} of them refused`);
  expect(wrong).toEqual([]);
  expect([right, Object.keys(golden).length, chats.size]).toEqual([656, 41, 16]);
});

test("constructs: what Jinja writes and what it refuses", () => {
  const constructs: [string, string | null][] = JSON.parse(read("constructs.json"));
  const written = (source: string) => {
    try {
      const variables = [["messages", []] as const, ["tools", null] as const];
      return parsed(source).write(new Scope(null, [...GLOBALS, ...variables]));
    } catch {
      return null;
    }
  };
  expect(constructs.map(([source]) => [source, written(source)])).toEqual(constructs);
});

test.each([
  ["{% include 'x' %}", "the statement 'include' is not supported"],
  ["{{ 1 | filesizeformat }}", "the filter 'filesizeformat' is not supported"],
  ["{{ 1 is prime }}", "the test 'prime' is not supported"],
  ["{{ 'a'.translate({}) }}", "the method 'translate' is not supported"],
  ["{{ [1] | map('pprint') }}", "the filter 'pprint' is not supported"],
  ["{{ x | selectattr('a', 'prime') }}", "the test 'prime' is not supported"],
  ["{{ cycler(1, 2) }}", "the function 'cycler' is not supported"],
  ["{% if x %}", "missing endif"],
  ["{{ a ? b }}", 'unexpected "?" in a tag on line 1'],
])("%s is found when the model is opened, and no message is blamed", (source, problem) => {
  const template = templateOf(source);
  expect(template.problem).toBe(`the model's chat template cannot be used: ${problem}`);
  const render = () => template.render(chatOf([{ role: "user", content: "x" }]));
  expect(render).toThrow(expect.objectContaining({ code: "model_unreadable" }));
});

test("what only a value shows to be beyond the engine is refused, not written wrong", () => {
  const messages = [{ role: "user", content: "x" }];
  for (const source of [
    "{{ '{:>5}'.format(1) }}",
    "{{ '%e' % 1.5 }}",
    "{{ strftime_now('%U') }}",
  ]) {
    expect(() => templateOf(source).render(chatOf(messages))).toThrow(/supported|has no/);
  }
  expect(templateOf("{{ '{{{0}}}-{0}'.format('a') }}").render(chatOf(messages))).toBe("{a}-a");
});

test("blanks: a text full of them is cut in no time", () => {
  const content = `${" x".repeat(50_000)}${" ".repeat(200_000)}x🧮 `;
  const source =
    "{{ messages[0].content | trim }}|{{ '🧮a🧮'.strip('🧮') }}|{{ 'x🧩'.strip('🧮') }}";
  const text = templateOf(source).render(chatOf([{ role: "user", content }]));
  expect(text).toBe(`${content.slice(1, -1)}|a|x🧩`);
});

test("subscripts: a template that looks back from each of many messages takes no time", () => {
  const template = templateOf(
    "{% for m in messages %}{{ messages[loop.index0 - 1].content }}{% endfor %}",
  );
  const messages = Array.from({ length: 65_536 }, (_, i) => ({
    role: "user",
    content: `${i % 10}`,
  }));
  expect(template.render(chatOf(messages))).toHaveLength(65_536);
});

test("tools: the template of that name is theirs, and sees the fields that vLLM gives it", () => {
  const template = templateOf("plain", { tool_use: "{{ tools | tojson }}" });
  const messages = [{ role: "user", content: "x" }];
  expect(template.render(chatOf(messages))).toBe("plain");
  const call = { parameters: {}, extra: 1, name: "f" };
  const tools = [{ function: call, type: "function", more: 2 }];
  expect(template.render(chatOf(messages, { tools }))).toBe(
    '[{"type": "function", "function": {"name": "f", "description": null, "parameters": {}}}]',
  );
});

test("variables: numerals and keys are the client's, and a request's own fields go before its variables", () => {
  const template = templateOf("{{ x | tojson }}{{ reasoning_effort }}{{ enable_thinking }}");
  const variables = '{"x":{"b":1.0,"2":9223372036854775807,"1":-0.0},"reasoning_effort":"low"}';
  const chat = (more: string) => `{"messages":[],"chat_template_kwargs":${variables}${more}}`;
  const shown = '{"b": 1.0, "2": 9223372036854775807, "1": -0.0}';
  expect(template.render(chat(""))).toBe(`${shown}low`);
  expect(template.render(chat(',"reasoning_effort":"none"'))).toBe(`${shown}noneFalse`);
});

test("continued: the text ends where the message does, whatever the template cuts", () => {
  const open = { continue_final_message: true };
  const turns = (content: unknown) => chatOf([{ role: "assistant", content }], open);
  const source = "{% for m in messages %}<{{ m.content }}>{% endfor %}";
  expect(templateOf(source).render(turns("a b "))).toBe("<a b ");
  const trims = templateOf(source.replace("m.content", "m.content | trim"));
  expect(trims.render(turns("a b "))).toBe("<a b");
  const parts = templateOf(
    "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}",
  );
  expect(parts.render(turns([{ type: "text", text: "a" }, "b"]))).toBe("a|b");
  expect(() => templateOf("-").render(turns("a"))).toThrow("does not show as it is");
  expect(() => parts.render(chatOf([{ role: "user" }], open))).toThrow("no text");
});

test("a template of the request is for engines alone, and one that refuses names its reason", () => {
  const template = templateOf("{{ raise_exception('no system role') }}");
  const messages = [{ role: "user", content: "x" }];
  expect(() => template.render(chatOf(messages))).toThrow("chat template: no system role");
  expect(() => template.render(chatOf(messages, { chat_template: "x" }))).toThrow("chat_template");
  expect(() => new ChatTemplate(new Map(), {}).render(chatOf(messages))).toThrow("has none");
});
