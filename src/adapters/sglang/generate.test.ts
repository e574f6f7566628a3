// SGLang's /generate: streams, lists, and what differs from prompt to prompt.

import { afterAll, expect, test } from "bun:test";
import { PlaneFixture } from "../../../test/golden/requests/plane-fixture.ts";

const fixture = new PlaneFixture({ lengthOf: () => 1000 });
afterAll(() => fixture.close());

interface Answer {
  text: string;
  output_ids: number[];
  index?: number;
  meta_info: {
    id: string;
    finish_reason: { type: string } | null;
    completion_tokens: number;
    output_token_logprobs?: [number, number, null][];
    output_token_logprobs_length?: number;
    output_top_logprobs?: unknown[];
    top_p_token_ids?: string;
    top_p_token_offsets?: string;
  };
}

const params = { max_new_tokens: 9, ignore_eos: true };

async function expectRefused(path: string, body: object, problem: string): Promise<void> {
  const refused = await fixture.post(path, body);
  expect([refused.status, await refused.text()]).toEqual([400, expect.stringContaining(problem)]);
}

/** As slime's SGLangStreamAccumulator reads a stream of cumulative chunks. */
function accumulated(events: readonly Answer[]): { tokens: number[]; text: string } {
  let length = 0;
  let tokens: number[] = [];
  let text = "";
  for (const { meta_info: meta, text: sofar } of events) {
    const pairs = meta.output_token_logprobs ?? [];
    expect(meta.output_token_logprobs_length).toBe(pairs.length);
    expect(pairs.length).toBeGreaterThanOrEqual(length);
    expect(sofar.startsWith(text)).toBe(true);
    const ids = pairs.map(([, id]) => id);
    expect(ids.slice(0, length)).toEqual(tokens);
    length = ids.length;
    tokens = ids;
    text = sofar;
  }
  return { tokens, text };
}

test("sglang: a stream's events hold the output so far, and its last one is the whole answer", async () => {
  const body = { input_ids: [1, 2], sampling_params: params, return_logprob: true };
  const { events, isDone } = await fixture.events("/generate", { ...body, stream: true, rid: "s" });
  expect(isDone).toBe(true);
  const answers = events as Answer[];
  expect(answers.length).toBeGreaterThan(1);
  const { tokens, text } = accumulated(answers);
  const last = answers.at(-1);
  expect(last).toMatchObject({ text, output_ids: tokens, meta_info: { id: "s" } });
  expect(tokens).toHaveLength(9);
  expect(last?.meta_info.finish_reason).toEqual({ type: "length", length: 9 } as never);
  for (const { meta_info: meta, index } of answers.slice(0, -1)) {
    expect([meta.finish_reason, index]).toEqual([null, undefined]);
  }
});

test("sglang: a stream of several prompts names each response by its index", async () => {
  const body = { input_ids: [[1], [2]], sampling_params: { ...params, n: 2 }, stream: true };
  const { events } = await fixture.events("/generate", { ...body, return_logprob: true });
  for (const index of [0, 1, 2, 3]) {
    const own = (events as Answer[]).filter((event) => event.index === index);
    expect(accumulated(own).tokens).toHaveLength(9);
    expect(own.at(-1)?.meta_info.finish_reason).not.toBeNull();
  }
});

test("sglang: lists give each prompt its own name, sampling and logprobs", async () => {
  const answers = (await fixture.json("/generate", {
    input_ids: [[1], [2], [3]],
    rid: ["a", "b", "c"],
    sampling_params: [3, 5, 7].map((max_new_tokens) => ({ ...params, max_new_tokens, stop: null })),
    return_logprob: [true, false, true],
    top_logprobs_num: [0, 0, 2],
    logprob_start_len: [-1, -1, -1],
  })) as Answer[];
  const rows = answers.map(({ output_ids: ids, meta_info: meta }) => {
    const { id, output_token_logprobs: own, output_top_logprobs: tops } = meta;
    return [id, ids.length, own?.length, tops?.length];
  });
  expect(rows).toEqual([
    ["a", 3, 3, undefined],
    ["b", 5, undefined, undefined],
    ["c", 7, 7, 7],
  ]);
});

test("sglang: one text names a batch by its numbers, and n by them too", async () => {
  const batch = { input_ids: [[1], [2]], rid: "r", sampling_params: params };
  const names = async (body: object) =>
    ((await fixture.json("/generate", body)) as Answer[]).map(({ meta_info: { id } }) => id);
  expect(await names(batch)).toEqual(["r_0", "r_1"]);
  const own = { input_ids: [[1], [2]], rid: ["x", "y"], sampling_params: { ...params, n: 2 } };
  expect(await names(own)).toEqual(["x_0", "x_1", "y_0", "y_1"]);
});

const LONG = { max_new_tokens: 400, ignore_eos: true };

/** Begins long responses. `ended`: their finish reasons, when all have ended. */
async function long(bodies: readonly object[], count: number) {
  const asked = bodies.map((body) => fixture.post("/generate", body));
  await fixture.when(() => fixture.sidecar.rollout.unfinished === count);
  await fixture.step(5);
  const ended = async () => {
    const answers = await fixture.until(Promise.all(asked));
    const read = (await Promise.all(answers.map((one) => one.json()))).flat() as Answer[];
    return read.map(({ meta_info: meta }) => meta.finish_reason?.type);
  };
  const abort = async (body: object) => (await fixture.post("/abort_request", body)).json();
  return { ended, abort };
}

test("sglang: an abort by a name of the list ends that prompt's response alone", async () => {
  const body = { input_ids: [[1], [2]], rid: ["keep", "end"], sampling_params: LONG };
  const { abort, ended } = await long([body], 2);
  expect(await abort({ rid: "end" })).toEqual({ success: true, aborted: 1 });
  expect(await ended()).toEqual(["length", "abort"]);
});

test("sglang: abort_all with the empty rid that SGLang's clients send ends all responses", async () => {
  const { abort, ended } = await long([{ input_ids: [1], sampling_params: { ...LONG, n: 2 } }], 2);
  expect(await abort({ rid: "", abort_all: true })).toEqual({ success: true, aborted: 1 });
  expect(await ended()).toEqual(["abort", "abort"]);
  for (const none of [{ rid: "" }, { rid: "", prefix: true }]) {
    expect((await fixture.post("/abort_request", none)).status).toBe(400);
  }
});

test("sglang: an abort by a prefix ends the responses whose ids begin with it", async () => {
  const bodies = ["slot-1:a", "slot-1:bb", "slot-10"].map((rid) => {
    return { input_ids: [1, rid.length], rid, sampling_params: LONG };
  });
  const { abort, ended } = await long(bodies, 3);
  expect(await abort({ rid: "slot-1:" })).toEqual({ success: true, aborted: 0 });
  expect(await abort({ rid: "slot-1:", prefix: true })).toEqual({ success: true, aborted: 2 });
  expect(await ended()).toEqual(["abort", "abort", "length"]);
});

test("sglang: slime's sets of tokens that top_p left, where top_k bounds them", async () => {
  const wanted = { custom_params: { return_top_p_token_ids: true }, top_p: 0.9 };
  const ask = async (sampling: object) => {
    const sampling_params = { ...params, ...wanted, ...sampling };
    const body = { input_ids: [1, 2], sampling_params, return_logprob: true };
    return (await fixture.json("/generate", body)) as Answer;
  };
  const { output_ids: tokens, meta_info: meta } = await ask({ top_k: 4 });
  const numbers = (text = "") => [
    ...new Int32Array(Uint8Array.from(Buffer.from(text, "base64")).buffer),
  ];
  const ids = numbers(meta.top_p_token_ids);
  const offsets = numbers(meta.top_p_token_offsets);
  // As slime checks them (`_extract_rollout_top_p_token_data`).
  expect([offsets[0], offsets.length, offsets.at(-1)]).toEqual([0, tokens.length + 1, ids.length]);
  for (const [i, token] of tokens.entries()) {
    const set = ids.slice(offsets[i], offsets[i + 1]);
    expect(set).toContain(token);
    expect(set.length).toBeLessThanOrEqual(4);
  }
  expect(meta.output_top_logprobs).toBeUndefined();
  // Greedy sampling leaves the likeliest one; without a bound nothing is said.
  const greedy = await ask({ temperature: 0 });
  expect(numbers(greedy.meta_info.top_p_token_ids)).toEqual(greedy.output_ids);
  expect((await ask({ top_k: -1 })).meta_info).not.toHaveProperty("top_p_token_ids");
});

test("sglang: every request of miles names return_indexer_topk; what no engine reports is refused by name", async () => {
  const body = {
    input_ids: [1, 2],
    sampling_params: { ...params, stop: null, stop_token_ids: null, no_stop_trim: true },
    return_logprob: true,
    return_routed_experts: false,
    return_indexer_topk: false,
  };
  const answer = (await fixture.json("/generate", body)) as Answer;
  expect(answer.meta_info.output_token_logprobs).toHaveLength(9);
  const wanting = { ...body, return_indexer_topk: true };
  await expectRefused("/generate", wanting, "return_indexer_topk is true");
});

test("sglang: its kinds of structured output reach the engine under vLLM's names", async () => {
  const seen: unknown[] = [];
  fixture.sidecar.observe({
    joined: ({ spec }) => seen.push(spec.sampling.engineFields?.structured_outputs),
  });
  const kinds = { json_schema: "json", regex: "regex", ebnf: "grammar", structural_tag: null };
  for (const [name, kind] of Object.entries(kinds)) {
    const sampling_params = { max_new_tokens: 2, [name]: "{}" };
    await fixture.json("/generate", { input_ids: [1], sampling_params });
    expect(seen.at(-1)).toEqual({ [kind ?? name]: "{}" });
  }
  const two = { input_ids: [1], sampling_params: { regex: "a", ebnf: "b" } };
  await expectRefused("/generate", two, "sampling_params.ebnf and regex are both set");
});

test("sglang: a chat of miles' session server, tokens beside the messages and meta_info in the answer", async () => {
  const body = {
    messages: [{ role: "user", content: "the tokens are what counts" }],
    input_ids: [5, 6, 7],
    logprobs: true,
    return_meta_info: true,
    no_stop_trim: false,
    max_tokens: 9,
    ignore_eos: true,
  };
  const { choices, usage } = (await fixture.json("/v1/chat/completions", body)) as {
    choices: { message: { content: string }; meta_info: Answer["meta_info"] }[];
    usage: { prompt_tokens: number };
  };
  const [choice] = choices;
  const { meta_info: meta, message } = choice ?? {};
  expect(message?.content).not.toBe("");
  expect([usage.prompt_tokens, meta?.completion_tokens]).toEqual([3, 9]);
  expect(meta?.finish_reason).toEqual({ type: "length", length: 9 } as never);
  const native = (await fixture.json("/generate", {
    input_ids: [5, 6, 7],
    sampling_params: params,
    return_logprob: true,
  })) as Answer;
  const ids = (one?: Answer["meta_info"]) => one?.output_token_logprobs?.map(([, id]) => id);
  expect(ids(meta)).toHaveLength(9);
  expect(Object.keys(meta ?? {})).toEqual(Object.keys(native.meta_info));
  const streamed = { ...body, stream: true };
  await expectRefused("/v1/chat/completions", streamed, "return_meta_info is true");
});
