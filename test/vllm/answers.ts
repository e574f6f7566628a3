// Tool calls, by vLLM's hermes parser, and logprobs of prompts: what comes through the sidecar is what one of the servers
// answers itself.

import { expect, test } from "bun:test";
import { eventsOf } from "../suite/sse.ts";
import type { LateBed } from "./bed.ts";

const CHAT = "/v1/chat/completions";
/** Flags of a server that parses tool calls. */
export const TOOL_FLAGS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];

const parameters = {
  type: "object",
  properties: { a: { type: "boolean" }, b: { type: "boolean" } },
  required: ["a", "b"],
};
const TOOLS = [{ type: "function", function: { name: "both", parameters } }];
const MESSAGES = [{ role: "user", content: "true and false?" }];
const GREEDY = { messages: MESSAGES, tools: TOOLS, max_tokens: 200, temperature: 0 };

interface Message {
  readonly content: string | null;
  readonly tool_calls?: readonly { id: string; type: string; function: object }[];
}
interface Choice {
  readonly message: Message;
  readonly delta: Message;
  readonly finish_reason: string | null;
}

/** Ids of calls are random. */
function shown({ content, tool_calls: calls = [] }: Message, finish: string | null) {
  return { content, calls: calls.map(({ type, function: called }) => ({ type, called })), finish };
}

export function toolTests(bed: LateBed): void {
  test("tools: the messages are those of one server, for every choice of tools, and as a stream", async () => {
    const { fleet } = bed();
    const named = { type: "function", function: { name: "both" } };
    let called = 0;
    for (const tool_choice of ["required", named, "auto", "none"]) {
      const body = { ...GREEDY, tool_choice };
      const plain = await fleet.plain(0).call("POST", CHAT, body);
      const [expected] = (plain.body as { choices: Choice[] }).choices;
      const answer = await fleet.call("POST", CHAT, body);
      const [choice] = ((await answer.json()) as { choices: Choice[] }).choices;
      if (expected === undefined || choice === undefined) throw new Error("no choice");
      const wanted = shown(expected.message, expected.finish_reason);
      expect(shown(choice.message, choice.finish_reason)).toEqual(wanted);
      called += wanted.calls.length;
      const stream = await fleet.call("POST", CHAT, { ...body, stream: true });
      const { events } = eventsOf<{ choices: [Choice] }>(await stream.text());
      const [last] = events.at(-1)?.choices ?? [];
      if (last === undefined) throw new Error("an empty stream");
      if (tool_choice === "none") continue;
      expect(shown(last.delta, last.finish_reason)).toEqual(wanted);
    }
    expect(called).toBeGreaterThanOrEqual(1);
  });
}

interface Answer {
  readonly choices: readonly { readonly prompt_logprobs: unknown; readonly token_ids: unknown }[];
}

export function promptLogprobTests(bed: LateBed): void {
  test("prompt logprobs: they are the server's, and the response is the same as without", async () => {
    const { fleet, prompts } = bed();
    for (const prompt of prompts.slice(0, 3)) {
      const body = { prompt, max_tokens: 40, temperature: 0, return_token_ids: true };
      const scored = { ...body, prompt_logprobs: 3 };
      const plain = (await fleet.plain(0).call("POST", "/v1/completions", scored)).body as Answer;
      const answer = await fleet.call("POST", "/v1/completions", scored);
      const { choices } = (await answer.json()) as Answer;
      expect(choices[0]?.prompt_logprobs).toEqual(plain.choices[0]?.prompt_logprobs);
      expect(choices[0]?.token_ids).toEqual(plain.choices[0]?.token_ids);
    }
  });
}
