// Chats with tools over stand-ins for vLLM servers that render and parse as a test says. What a real server's parser
// makes of a response is tested with one, in test/vllm.

import { afterEach, expect, test } from "bun:test";
import { StandInBed, stopBeds } from "../../../test/faults/attacks/stand-in-bed.ts";
import type { StandInOptions } from "../../../test/faults/stand-in/vllm-stand-in.ts";
import { eventsOf } from "../../../test/suite/sse.ts";

const CHAT = "/v1/chat/completions";
const TOOLS = [{ type: "function", function: { name: "add", parameters: {} } }];
const MESSAGES = [{ role: "user", content: "1 + 2?" }];
const PROMPT = [11, 12, 13];
const EOS = 2;

type Body = Readonly<Record<string, unknown>>;
interface Choice {
  readonly index: number;
  readonly message: Body;
  readonly delta: Body;
  readonly token_ids: readonly number[];
  readonly finish_reason: string | null;
}

let bed: StandInBed;
afterEach(stopBeds);

/** The stand-in's parser, which calls `add` with its input. */
function parses(seen: Body[], rendered: Body = {}): StandInOptions["routes"] {
  return (path, body) => {
    if (path === `${CHAT}/render`) {
      seen.push(body);
      const sampling_params = { stop_token_ids: [], ...rendered };
      return { status: 200, body: { token_ids: PROMPT, sampling_params } };
    }
    if (path !== `${CHAT}/derender`) return null;
    seen.push(body);
    const { choices } = body.generate_response as { choices: Choice[] };
    const call = { name: "add", arguments: JSON.stringify(choices[0]?.token_ids) };
    const tool_calls = [{ id: "c1", type: "function", function: call }];
    const message = { role: "assistant", content: null, tool_calls, reasoning: "because" };
    return { status: 200, body: { choices: [{ index: 0, message }] } };
  };
}

async function started(optionsOf: (index: number) => Partial<StandInOptions>, count = 1) {
  bed = await StandInBed.start(count, optionsOf);
  return bed;
}

async function choicesOf(response: Response): Promise<Choice[]> {
  const text = await response.text();
  expect([response.status, text]).toEqual([200, text]);
  return (JSON.parse(text) as { choices: Choice[] }).choices;
}

function tokensGiven({ message }: Choice): number[] {
  const [call] = message.tool_calls as { function: { arguments: string } }[];
  return JSON.parse(call?.function.arguments ?? "null");
}

const asked = (standIns: StandInBed["standIns"]) =>
  standIns.flatMap(({ bodies }) => bodies).filter((body) => body.request_id !== "ft-probe");

const chat = { messages: MESSAGES, tools: TOOLS, max_tokens: 12, return_token_ids: true };

test("tools: a chat is rendered by an engine, divided like any request, and parsed at its end", async () => {
  const seen: Body[] = [];
  const { standIns } = await started(() => ({ routes: parses(seen) }), 2);
  const choices = await choicesOf(await bed.post(CHAT, { ...chat, n: 3 }));
  expect(choices).toHaveLength(3);
  for (const choice of choices) {
    const { token_ids: tokens, message, finish_reason: finish } = choice;
    // A token that ends the response is no part of its text.
    const text = tokens.at(-1) === EOS ? tokens.slice(0, -1) : tokens;
    expect(tokensGiven(choice)).toEqual([...text]);
    expect([message.content, message.reasoning, finish]).toEqual([null, "because", "tool_calls"]);
  }
  const bodies = asked(standIns);
  for (const { token_ids: ids } of bodies) expect((ids as number[]).slice(0, 3)).toEqual(PROMPT);
  // Chunks of 5 of 12 tokens: at least three requests for each response.
  expect(bodies.length).toBeGreaterThanOrEqual(9);
  const [render, derender] = seen;
  expect(render).toEqual({ messages: MESSAGES, tools: TOOLS, max_completion_tokens: 12 });
  expect([derender?.prompt_token_ids, derender?.chat_request]).toEqual([PROMPT, render]);
});

test("tools: a stream gets each parsed message whole, its calls numbered", async () => {
  await started(() => ({ routes: parses([]) }));
  const response = await bed.post(CHAT, { ...chat, n: 2, stream: true });
  const { events, isDone } = eventsOf<{ choices: [Choice] }>(await response.text());
  expect(isDone).toBe(true);
  const chunks = events.map(({ choices: [choice] }) => choice);
  const ends = chunks.filter((choice) => choice.finish_reason !== null);
  expect(ends.map(({ index }) => index).sort()).toEqual([0, 1]);
  for (const { delta, finish_reason: finish } of ends) {
    expect([delta.content, delta.reasoning, finish]).toEqual([null, "because", "tool_calls"]);
    const [call] = delta.tool_calls as Body[];
    expect([call?.index, call?.id, call?.type]).toEqual([0, "c1", "function"]);
  }
  // Nothing of a message is shown before it is parsed.
  const others = chunks.filter((choice) => choice.finish_reason === null);
  const opening = { role: "assistant", content: "" };
  expect(others.map(({ delta }) => delta)).toEqual([opening, opening]);
});

test("tools: what the renderer asks of the response goes to the engine, which then gets it in one piece", async () => {
  const structured_outputs = { json: null, structural_tag: "{}", disable_any_whitespace: false };
  const { standIns } = await started(() => ({
    routes: parses([], { structured_outputs, stop_token_ids: [77] }),
  }));
  const choice = { ...chat, tool_choice: "required" };
  await choicesOf(await bed.post(CHAT, choice));
  const params = asked(standIns).map((body) => body.sampling_params as Body);
  expect(params.map((one) => one.structured_outputs)).toEqual([{ structural_tag: "{}" }]);
  expect(params[0]?.stop_token_ids).toContain(77);
});

test("tools: a choice without tools is a 400; tool_choice none is rendered and parsed by nobody", async () => {
  const seen: Body[] = [];
  await started(() => ({ routes: parses(seen) }));
  const lost = await bed.post(CHAT, { messages: MESSAGES, tool_choice: "required" });
  expect([lost.status, await lost.text()]).toEqual([400, expect.stringContaining("tool_choice")]);
  const [plain] = await choicesOf(await bed.post(CHAT, { ...chat, tool_choice: "none" }));
  expect([typeof plain?.message.content, plain?.message.tool_calls]).toEqual(["string", undefined]);
  // The prompt is the engine's with tools, too.
  const rendered = { messages: MESSAGES, tools: TOOLS, tool_choice: "none" };
  expect(seen).toEqual([{ ...rendered, max_completion_tokens: 12 }]);
});

test("tools: the engine that has the routes is found, and what it refuses is a 400 in its words", async () => {
  const refuses: StandInOptions["routes"] = (path) =>
    path === `${CHAT}/render`
      ? { status: 400, body: { error: { message: '"auto" needs --enable-auto-tool-choice' } } }
      : null;
  let routes = parses([]);
  await started((index) => (index === 0 ? {} : { routes: (...asked) => routes(...asked) }), 2);
  for (let i = 0; i < 3; i += 1) await choicesOf(await bed.post(CHAT, chat));
  routes = refuses;
  const asking = (content: string) => ({ ...chat, messages: [{ role: "user", content }] });
  const refused = await bed.post(CHAT, asking("2 + 2?"));
  const { error } = (await refused.json()) as { error: Body };
  expect([refused.status, error.message]).toEqual([400, '"auto" needs --enable-auto-tool-choice']);
  routes = () => null;
  const missing = await bed.post(CHAT, asking("3 + 2?"));
  const text = await missing.text();
  const nobody = expect.stringContaining("no worker parses tool calls");
  expect([missing.status, text]).toEqual([400, nobody]);
  for (const { url } of bed.standIns) expect(text).toContain(url);
});

test("tools: a parser that fails is a 502 of this request alone", async () => {
  let isBroken = true;
  const good = parses([]);
  await started(() => ({
    routes: (...asked) =>
      isBroken && asked[0] === `${CHAT}/derender` ? { status: 500, body: {} } : good(...asked),
  }));
  const failed = await bed.post(CHAT, chat);
  expect([failed.status, await failed.text()]).toEqual([502, expect.stringContaining("derender")]);
  const stream = await bed.post(CHAT, { ...chat, stream: true });
  expect(await stream.text()).toContain('"code":502');
  isBroken = false;
  const [choice] = await choicesOf(await bed.post(CHAT, chat));
  expect(choice?.finish_reason).toBe("tool_calls");
  expect(bed.failures).toEqual([]);
});
