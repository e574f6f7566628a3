// A model whose tokenizer is not on this machine: ids work as ever, and texts by way of an engine's own tokenizer.

import { afterEach, expect, test } from "bun:test";
import { StandInBed, stopBeds } from "../../test/faults/attacks/stand-in-bed.ts";
import { EOS, standInResponse } from "../../test/faults/stand-in/tokens.ts";
import type { StandInOptions } from "../../test/faults/stand-in/vllm-stand-in.ts";
import { eventsOf } from "../../test/suite/sse.ts";
import { IdText } from "../text/id-text.ts";
import { PoolCalls } from "./engine-calls.ts";

const TOKENS = 20;
const PROMPT = [500, 501, 502];
afterEach(stopBeds);

/** Tokens are words of their numbers, and numbers are written with a w. */
const tokenizer: StandInOptions["routes"] = (path, body) => {
  if (path === "/tokenize") {
    const text = String(body.prompt ?? JSON.stringify(body.messages));
    const tokens = [...text.matchAll(/w(\d+)/g)].map(([, id]) => Number(id));
    return { status: 200, body: { count: tokens.length, tokens } };
  }
  if (path !== "/detokenize") return null;
  return {
    status: 200,
    body: { prompt: (body.tokens as number[]).map((id) => `w${id}`).join(" ") },
  };
};

async function started(options: Partial<StandInOptions>): Promise<StandInBed> {
  const model = { text: new IdText(), openTextThread: null, eosTokenIds: [] };
  return await StandInBed.start(1, () => options, { serve: { chunkTokens: 6, model } });
}

const drawn = (prompt: readonly number[], max = TOKENS) =>
  standInResponse({ prompt, tokensMax: max });
const words = (tokens: readonly number[]) =>
  tokens
    .filter((token) => token !== EOS)
    .map((id) => `w${id}`)
    .join(" ");

test("no tokenizer: ids in and out need none, and the engine ends a response at its own EOS", async () => {
  const bed = await started({});
  const ask = { token_ids: PROMPT, sampling_params: { max_tokens: TOKENS } };
  const { status, text } = await bed.http.ask("/inference/v1/generate", ask);
  const [choice] = JSON.parse(text).choices;
  expect([status, choice.token_ids]).toEqual([200, drawn(PROMPT)]);
  // One of these ends at EOS, the other would and must not.
  const long = Array.from({ length: 300 }, (_, i) => [i, 7]).find(
    (prompt) => drawn(prompt, 60).at(-1) === EOS,
  );
  if (long === undefined) throw new Error("no prompt ends early");
  const ended = await bed.http.ask("/inference/v1/generate", {
    token_ids: long,
    sampling_params: { max_tokens: 60 },
  });
  const [stopped] = JSON.parse(ended.text).choices;
  expect([stopped.token_ids, stopped.finish_reason]).toEqual([drawn(long, 60), "stop"]);
  const ignoring = await bed.http.ask("/inference/v1/generate", {
    token_ids: long,
    sampling_params: { max_tokens: 60, ignore_eos: true },
  });
  expect(JSON.parse(ignoring.text).choices[0].token_ids).toHaveLength(60);
  expect(bed.failures).toEqual([]);
});

test("no tokenizer: texts go through an engine, whole and as a stream", async () => {
  const bed = await started({ routes: tokenizer });
  const expected = words(drawn(PROMPT));
  const ask = { prompt: "w500 w501 w502", max_tokens: TOKENS, logprobs: 1 };
  const whole = JSON.parse((await bed.http.ask("/v1/completions", ask)).text).choices[0];
  expect([whole.text, whole.logprobs.tokens[0]]).toEqual([
    expected,
    `token_id:${drawn(PROMPT)[0]}`,
  ]);
  const byIds = await bed.http.ask("/v1/completions", { prompt: PROMPT, max_tokens: TOKENS, n: 1 });
  expect(JSON.parse(byIds.text).choices[0].text).toMatch(/^w\d+/);
  const messages = [{ role: "user", content: "w500 w501 w502" }];
  const chat = await bed.http.ask("/v1/chat/completions", { messages, max_tokens: TOKENS });
  expect(JSON.parse(chat.text).choices[0].message.content).toMatch(/^w\d+( w\d+)+$/);
  for (const [path, body] of [
    ["/v1/completions", { prompt: [9, 8, 7], max_tokens: TOKENS, stream: true }],
    ["/v1/chat/completions", { messages, max_tokens: TOKENS, stream: true }],
  ] as const) {
    const { text } = await bed.http.ask(path, body);
    const choices = eventsOf(text).events.map((event) => Object(event).choices[0]);
    const written = choices.map((choice) => choice.text ?? choice.delta.content).join("");
    expect([path, written]).toEqual([path, expect.stringMatching(/^w\d+( w\d+)+$/)]);
    expect(choices.at(-1).finish_reason).toBe("length");
  }
  const tokenized = await bed.http.ask("/tokenize", { prompt: "w1 w2" });
  expect(JSON.parse(tokenized.text).tokens).toEqual([1, 2]);
  expect(JSON.parse((await bed.http.ask("/detokenize", { tokens: [1, 2] })).text).prompt).toBe(
    "w1 w2",
  );
  expect(bed.failures).toEqual([]);
});

test("no tokenizer: what needs one here is a 400 that says so, and ids go on working", async () => {
  const bed = await started({});
  for (const [path, body, word] of [
    ["/v1/completions", { prompt: "w1", max_tokens: 4 }, "--tokenizer"],
    ["/v1/completions", { prompt: PROMPT, max_tokens: 4, stop: ["x"] }, "stop_token_ids"],
    ["/v1/completions", { prompt: PROMPT, max_tokens: 4, echo: true }, "echo"],
    ["/v1/completions", { prompt: PROMPT, max_tokens: 4 }, "--tokenizer"],
    ["/tokenize", { prompt: "w1" }, "--tokenizer"],
    ["/inference/v1/generate", { token_ids: [5000], sampling_params: { max_tokens: 4 } }, "5000"],
  ] as const) {
    const { status, text } = await bed.http.ask(path, body);
    expect([path, body, status, text]).toEqual([path, body, 400, expect.stringContaining(word)]);
  }
  const good = { token_ids: [1, 2], sampling_params: { max_tokens: 4 } };
  expect((await bed.http.ask("/inference/v1/generate", good)).status).toBe(200);
  expect(bed.failures).toEqual([]);
});

test("post: engines in service are asked in turn, others only where none of them answers", async () => {
  const asked: string[] = [];
  let status = 200;
  const member = (name: string, state: string) => ({
    state,
    source: { name },
    worker: {
      perform: async () => {
        asked.push(name);
        return { status: name === "away" ? 200 : status, body: {} };
      },
    },
  });
  const members = [member("a", "ready"), member("away", "reconnecting"), member("b", "ready")];
  const sidecar = {
    rollout: { epoch: 0 },
    waits: { begin: () => () => {} },
    observe: () => () => {},
  };
  const parts = { pool: { members }, sidecar, later: () => () => {} };
  const calls = new PoolCalls(parts as unknown as ConstructorParameters<typeof PoolCalls>[0]);
  const { signal } = new AbortController();
  for (let i = 0; i < 6; i += 1) await calls.post({ form: "render", body: "{}", signal });
  expect(new Set(asked)).toEqual(new Set(["a", "b"]));
  status = 502;
  asked.length = 0;
  await calls.post({ form: "render", body: "{}", signal });
  expect(asked.at(-1)).toBe("away");
  expect(asked.slice(0, 2).toSorted()).toEqual(["a", "b"]);
});
