// Anthropic's Messages API over simulated engines: how a conversation becomes a chat, and how an answer is written.

import { expect, test } from "bun:test";
import { ownFixture } from "../../../test/golden/requests/plane-fixture.ts";
import { checked } from "../../server/openai/fields.ts";
import { chatBodyOf, messagesRequest } from "./fields.ts";

const HELLO = { model: "tiny", max_tokens: 40, messages: [{ role: "user", content: "a" }] };
const CALL = { type: "tool_use", id: "t", name: "ls", input: 5 };
const SCHEMA = { type: "object", properties: { path: { type: "string" } } };

const chatOf = (body: object) =>
  chatBodyOf(checked(messagesRequest, { ...HELLO, ...body }), "").fields;
/** As JSON has it: without fields that are undefined. */
const plain = (value: unknown): unknown => JSON.parse(JSON.stringify(value));

test("messages: blocks, thinking, tools and their results are what vLLM makes of them", () => {
  const chat = chatOf({
    system: [
      { type: "text", text: "x-anthropic-billing-header: 1" },
      { type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } },
    ],
    messages: [
      { role: "user", content: [{ type: "text", text: "list" }] },
      {
        role: "assistant",
        content: [
          { type: "thinking", thinking: "hm", signature: "s" },
          { type: "redacted_thinking", data: "x" },
          { type: "tool_use", id: "t1", name: "ls", input: { path: "/" } },
        ],
      },
      {
        role: "user",
        content: [
          { type: "text", text: "and" },
          { type: "tool_result", tool_use_id: "t1", content: [{ type: "text", text: "bin" }] },
          { type: "text", text: "now?" },
        ],
      },
    ],
    tools: [{ name: "ls", description: "lists", input_schema: SCHEMA }],
    tool_choice: { type: "any", disable_parallel_tool_use: true },
    thinking: { type: "enabled", budget_tokens: 30 },
    stop_sequences: ["END"],
    metadata: { user_id: "u" },
  });
  expect(plain(chat)).toEqual({
    model: "tiny",
    max_tokens: 40,
    stop: ["END"],
    thinking_token_budget: 30,
    tool_choice: "required",
    parallel_tool_calls: false,
    tools: [
      { type: "function", function: { name: "ls", description: "lists", parameters: SCHEMA } },
    ],
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "list" },
      {
        role: "assistant",
        content: null,
        reasoning: "hm",
        tool_calls: [
          { id: "t1", type: "function", function: { name: "ls", arguments: '{"path":"/"}' } },
        ],
      },
      { role: "tool", tool_call_id: "t1", content: "bin" },
      {
        role: "user",
        content: [
          { type: "text", text: "and" },
          { type: "text", text: "now?" },
        ],
      },
    ],
  });
  const { reasoning_effort: effort } = chatOf({ thinking: { type: "disabled" } });
  expect(effort).toBe("none");
  const tools = [{ name: "ls", input_schema: {} }];
  expect(plain(chatOf({ tools, tool_choice: { type: "tool", name: "ls" } }))).toMatchObject({
    tool_choice: { type: "function", function: { name: "ls" } },
    tools: [{ function: { parameters: { type: "object" } } }],
  });
});

test("messages: what cannot be honoured is refused by its name", async () => {
  const fixture = ownFixture({});
  const image = { type: "image", source: { type: "url", url: "http://x" } };
  const search = { type: "web_search_20250305", name: "web_search" };
  const wrong: [object, string][] = [
    [{ messages: [5] }, "messages.0"],
    [{ messages: [{ role: "user" }] }, "messages.0.content"],
    [{ tools: [search] }, "tools.0.input_schema"],
    [{ tools: [null] }, "tools.0"],
    [{ output_config: { format: { type: "json_schema" } } }, "output_config.format.schema"],
    [{ max_tokens: undefined }, "max_tokens"],
    [{ messages: [{ role: "user", content: [image] }] }, "messages.0.content.0.type"],
    [{ messages: [{ role: "tool", content: "x" }] }, "messages.0.role"],
    [{ mcp_servers: [{}] }, "mcp_servers"],
    [{ tool_choice: { type: "some" } }, "tool_choice.type"],
    [{ no_such_field: 1 }, "no_such_field"],
    [{ stop_sequences: [""] }, "stop_sequences.0"],
    [{ stop_sequences: Array.from({ length: 65 }, (_, i) => `${i}`) }, "stop_sequences"],
    [{ messages: [{ role: "assistant", content: [CALL] }] }, "messages.0.content.0.input"],
  ];
  for (const [more, field] of wrong) {
    const response = await fixture.post("/v1/messages", { ...HELLO, ...more });
    const { error } = Object(await response.json());
    expect([field, response.status, error.param]).toEqual([field, 400, field]);
    expect(error.message).not.toContain("Invalid");
  }
  const responses = await fixture.post("/v1/responses", { model: "tiny", input: "a" });
  expect(responses.status).toBe(404);
  expect(JSON.stringify(await responses.json())).toContain("/v1/messages");
});

test("messages: an answer is the chat's, as blocks, whole and as events; its tokens can be counted before", async () => {
  const fixture = ownFixture({ lengthOf: () => 6 });
  const whole = Object(await fixture.json("/v1/messages", { ...HELLO, seed: undefined }));
  expect(whole).toMatchObject({
    type: "message",
    role: "assistant",
    model: "tiny",
    stop_reason: "end_turn",
    stop_sequence: null,
    content: [{ type: "text", text: expect.any(String) }],
  });
  const { input_tokens: read, cache_read_input_tokens: cached = 0 } = whole.usage;
  expect(whole.usage.output_tokens).toBe(6);
  const { max_tokens: _, ...prompt } = HELLO;
  const count = await fixture.json("/v1/messages/count_tokens", prompt);
  expect(count).toEqual({ input_tokens: read + cached });
  const streamed = fixture.post("/v1/messages", { ...HELLO, stream: true, max_tokens: 3 });
  const answer = await fixture.until(streamed.then((one) => one.text()));
  const parts = answer.trimEnd().split("\n\n");
  const events = parts.map((part) => {
    const [name = "", data = ""] = part.split("\n");
    const body = JSON.parse(data.replace(/^data: /, ""));
    expect(name).toBe(`event: ${body.type}`);
    return body;
  });
  const deltas = events.filter(({ type }) => type === "content_block_delta");
  expect(events.map(({ type }) => type).filter((type) => type !== "content_block_delta")).toEqual([
    ...["message_start", "content_block_start"],
    ...["content_block_stop", "message_delta", "message_stop"],
  ]);
  expect(deltas.length).toBeGreaterThan(0);
  expect(events.at(-2)).toMatchObject({
    delta: { stop_reason: "max_tokens" },
    usage: { output_tokens: 3 },
  });
});
