// The prompts of chats, by engines that render and by those that do not.

import { afterEach, expect, test } from "bun:test";
import { StandInBed, stopBeds } from "../../../test/faults/attacks/stand-in-bed.ts";
import type { StandInOptions } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { AppError, RefusedError } from "../../core/base/errors.ts";
import type { EncodeOptions, Encoder } from "../../text/text.ts";
import type { EngineCall, EngineReply } from "../engine-calls.ts";
import { ChatRenderer, type RenderedBy } from "./rendering.ts";

const CHAT = "/v1/chat/completions";
const OPTIONS = { addSpecial: false, tokensMax: 100, signal: new AbortController().signal };
const MISSING: EngineReply = { kind: "missing", reasons: "HTTP 404" };

afterEach(stopBeds);

const answer = (...ids: number[]): EngineReply => ({ kind: "answer", body: { token_ids: ids } });

function rendererOf(replyTo: (call: EngineCall) => EngineReply) {
  const calls: EngineCall[] = [];
  const by: RenderedBy[] = [];
  const own = { text: "own", tokens: Int32Array.of(9) };
  const engines = {
    post: async (call: EngineCall) => {
      calls.push(call);
      return replyTo(call);
    },
  };
  const encoder = { encodeChat: async () => own } as Partial<Encoder> as Encoder;
  const chats = new ChatRenderer({ engines, encoder, rendered: (one) => by.push(one) });
  const tokens = async (chat: string, options: EncodeOptions = OPTIONS) => [
    ...(await chats.render(chat, options)).tokens,
  ];
  return { chats, calls, by, tokens };
}

/** A sidecar over engines that render. `seen`: the chats that they have got. */
async function rendering(count: number) {
  const seen: string[] = [];
  const routes: StandInOptions["routes"] = (path, _body, source) => {
    if (path !== `${CHAT}/render`) return null;
    seen.push(source);
    return { status: 200, body: { token_ids: [11, 12, 13], sampling_params: {} } };
  };
  return { bed: await StandInBed.start(count, () => ({ routes })), seen };
}

test("render: responses to one chat share one call, until engines come or go", async () => {
  const { chats, calls, by, tokens } = rendererOf(() => answer(1, 2));
  const all = await Promise.all([tokens("{a}"), tokens("{a}"), tokens("{b}")]);
  expect<unknown>(all).toEqual(Array(3).fill([1, 2]));
  expect(calls.map(({ body }) => body)).toEqual(["{a}", "{b}"]);
  chats.forget();
  await tokens("{a}");
  expect([calls.length, by]).toEqual([3, ["engine", "kept", "engine", "engine"]]);
});

test("render: numbers in Anthropic's tools and calls, and the order of names, are the client's", async () => {
  const { bed, seen } = await rendering(1);
  const schema = '{"type":"object","max":9223372036854775807,"1":-0.0}';
  const use = '{"type":"tool_use","id":"c","name":"f","input":{"x":1.0,"1":0}}';
  const messages = [
    '{"role":"user","content":"q"}',
    `{"role":"assistant","content":[${use}]}`,
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"c"}]}',
  ];
  const tools = `[{"name":"f","input_schema":${schema}}]`;
  const body = `{"messages":[${messages.join(",")}],"tools":${tools}}`;
  for (const [path, more] of [
    ["v1/messages/count_tokens", "{"],
    ["v1/messages", '{"max_tokens":3,"tool_choice":{"type":"none"},'],
  ]) {
    const whole = `${more}${body.slice(1)}`;
    const response = await fetch(`${bed.sidecar.url}${path}`, { method: "POST", body: whole });
    expect([path, response.status]).toEqual([path, 200]);
  }
  expect(seen).toHaveLength(2);
  for (const source of seen) {
    expect(source).toContain(`"parameters":${schema}`);
    expect(source).toContain(JSON.stringify('{"x":1.0,"1":0}'));
  }
});

test("render: kept answers are bounded, the oldest go", async () => {
  const { calls, tokens } = rendererOf(() => answer(1));
  const large = (letter: string) => letter.repeat(20 * 2 ** 20);
  for (const chat of [large("a"), large("b"), large("b"), large("a")]) await tokens(chat);
  expect(calls.map(({ body }) => body[0])).toEqual(["a", "b", "a"]);
});

test("render: without the route the template here makes the prompt, and failures are not kept", async () => {
  let reply: () => EngineReply = () => MISSING;
  const { calls, by, tokens } = rendererOf(() => reply());
  expect(await tokens("{a}")).toEqual([9]);
  reply = () => {
    throw new RefusedError({ status: 400, message: "no system role" });
  };
  await expect(tokens("{a}")).rejects.toThrow("no system role");
  reply = () => answer(1);
  expect(await tokens("{a}")).toEqual([1]);
  expect([calls.length, by]).toEqual([3, ["template", "engine"]]);
});

test("render: while the engines that render are away, no other template takes their place", async () => {
  let reply: () => EngineReply = () => {
    throw new AppError("no_worker", "no worker is in service");
  };
  const { tokens } = rendererOf(() => reply());
  expect(await tokens("{a}")).toEqual([9]);
  const away = reply;
  reply = () => answer(1);
  await tokens("{b}");
  reply = away;
  await expect(tokens("{c}")).rejects.toThrow("no worker is in service");
});

test("render: what is only counted may be longer than the context", async () => {
  const message = "This model's maximum context length is 4 tokens.";
  const { calls, tokens } = rendererOf(({ form }) => {
    if (form === "tokenize") return { kind: "answer", body: { tokens: [5, 6] } };
    throw new RefusedError({ status: 400, message });
  });
  const chat =
    '{"messages":[1.0],"chat_template_kwargs":{"b":1},"documents":[{}],"tool_choice":"none"}';
  await expect(tokens(chat)).rejects.toThrow(message);
  expect(await tokens(chat, { ...OPTIONS, tokensMax: null })).toEqual([5, 6]);
  expect(calls.at(-1)?.body).toBe(
    '{"messages":[1.0],"chat_template_kwargs":{"b":1,"documents":[{}]}}',
  );
});

test("render: an engine gets the client's own bytes, of every endpoint, and is asked once", async () => {
  const { bed, seen } = await rendering(2);
  const messages = '[ {"role":"user","2":1.0,"1":-0.0,"content":"a\\u00e9 \\/"} ]';
  const tools = '[{"max":9223372036854775807,"b":{},"0":{}}]';
  const fields = `"messages": ${messages}, "tools":${tools},"chat_template_kwargs":{"x":1.0}`;
  const large = `"user": "${"x".repeat(300_000)}"`;
  const posted: [string, string][] = [
    [CHAT, `{"n":3,"max_tokens":4,"tool_choice":"none",${fields}}`],
    [CHAT, `{"n":1,"max_tokens":4,"tool_choice":"none",${large},${fields}}`],
    ["/tokenize", `{${fields}}`],
    [
      "/v1/rollouts",
      `{"groups":[{"id":"a","token_ids":[1]},{"id":"b",${fields}}],"sampling_params":{"max_tokens":4}}`,
    ],
  ];
  for (const [path, body] of posted) {
    const response = await fetch(`${bed.sidecar.url}${path.slice(1)}`, { method: "POST", body });
    const text = await response.text();
    expect([path, response.status, text]).toEqual([path, 200, expect.stringContaining("1")]);
    if (path === "/tokenize") expect(JSON.parse(text).tokens).toEqual([11, 12, 13]);
  }
  const chat = `{"messages":${messages},"tools":${tools},"chat_template_kwargs":{"x":1.0}`;
  const limit = '"max_completion_tokens"';
  expect(seen).toEqual([`${chat},"tool_choice":"none",${limit}:4}`, `${chat},${limit}:1}`]);
  // Tokens need no renderer.
  const user = [{ role: "user", content: "x" }];
  await bed.post(CHAT, { messages: user, input_ids: [1, 2], max_tokens: 2 });
  expect(seen).toHaveLength(2);
});
