// The routes over HTTP: what is refused and how, what groups are made of, and clients that go away.

import { expect, test } from "bun:test";
import * as v from "valibot";
import { type FixtureOptions, ownFixture } from "../../../test/golden/requests/plane-fixture.ts";
import { ADAPTER_DATA } from "../../adapters/list.ts";
import type { RolloutRequest as Wanted } from "../../core/request/buffer.ts";
import { DATA_ROUTES } from "./data-plane.ts";
import { checked, flag, jsonSchemaOf } from "./fields.ts";

const fixtureOf = (options: FixtureOptions = {}) => ownFixture(options);

const GENERATE = "/inference/v1/generate";
const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";

interface ErrorSeen {
  readonly error: { message: string; type: string; param: string | null; code: number };
}

const GOOD: Record<string, object> = {
  [COMPLETIONS]: { prompt: "a", max_tokens: 2 },
  [CHAT]: { messages: [{ role: "user", content: "a" }], max_tokens: 2 },
  "/v1/chat/completions/tokens": { messages: [], tokens: [1], max_tokens: 2 },
  "/v1/chat/completions/render": { messages: [{ role: "user", content: "a" }] },
  [GENERATE]: { token_ids: [1], sampling_params: { max_tokens: 2 } },
  "/generate": { input_ids: [1], sampling_params: { max_new_tokens: 2 } },
  "/skyrl/v1/generate": {
    token_ids: [1],
    return_sample_support: true,
    sampling_params: { max_tokens: 2, top_k: 4 },
  },
  "/v1/messages": { max_tokens: 2, messages: [{ role: "user", content: "a" }] },
  "/v1/messages/count_tokens": { messages: [{ role: "user", content: "a" }] },
  "/tokenize": { prompt: "a" },
  "/detokenize": { tokens: [97] },
};

const WITHOUT_A_PROMPT: readonly string[] = ["/abort_request", "/v1/responses"];

const text = "x";
/** Invalid values of each field. */
type Bad = Readonly<Record<string, readonly unknown[]>>;
const entriesOf = (bad: Bad): [string, unknown][] =>
  Object.entries(bad).flatMap(([field, values]) =>
    values.map((value): [string, unknown] => [field, value]),
  );
const BAD_SAMPLING: Bad = {
  n: [0, 1.5, 20_000],
  temperature: [-0.1, text],
  top_p: [0, 1.1],
  top_k: [-2, 0.5],
  min_p: [2],
  repetition_penalty: [0],
  presence_penalty: [2.1],
  frequency_penalty: [-3],
  logit_bias: [{ x: 1 }, { 5: 200 }, [], JSON.parse('{"__proto__": 5}'), { constructor: 5 }],
  seed: [2 ** 63, -(2 ** 64), 1.5, text],
  stop: [5, ""],
  stop_token_ids: [[-1], [1001]],
  min_tokens: [3],
  ignore_eos: [1],
  prompt_logprobs: [-2],
  best_of: [2],
  use_beam_search: [true],
  watermarking: [true],
  logits_processors: [["a"]],
  guided_json: [{}],
  guided_regex: ["a"],
  guided_choice: [["a"]],
  guided_grammar: ["a"],
  bad_words: [text],
  allowed_token_ids: [text],
  return_routed_experts: ["yes"],
};
const BAD_EVERYWHERE: Bad = {
  temprature: [1],
  stream: ["yes"],
  stream_options: [{ include_usage: true }],
  priority: [2 ** 40],
  request_id: [""],
  cache_salt: ["", 5],
  group_id: [5],
  kv_transfer_params: [{ a: 1 }],
  deadline: [{ group_s: 5 }],
  model: [5],
};
const BAD_OF: Readonly<Record<string, Bad>> = {
  [COMPLETIONS]: {
    prompt: [null, [], [[1], ["a"]], [1, 1001]],
    logprobs: [21, "1"],
    max_tokens: [0],
    suffix: ["b"],
    truncate_prompt_tokens: [-2],
    truncation_side: ["middle"],
  },
  "/skyrl/v1/generate": { stream: [true] },
  [CHAT]: {
    messages: [[], "hi"],
    top_logprobs: [2],
    logprobs: [3],
    tool_choice: ["auto"],
    echo: [true],
    required_prefix_token_ids: [[1]],
  },
  "/v1/chat/completions/tokens": { tokens: [[]] },
  "/v1/chat/completions/render": { messages: [5] },
  [GENERATE]: {
    token_ids: [[], [1001], ["1"]],
    sampling_params: [null],
    features: [{ mm_hashes: {} }],
    output_mode: ["audio"],
  },
  "/generate": {
    input_ids: [null, []],
    logprob_start_len: [0],
    rid: [["a", "b"]],
    stream: ["yes"],
    image_data: [["x"]],
  },
  "/tokenize": { prompt: [5] },
  "/detokenize": { tokens: [[1001], "a"] },
};

const ANY_JSON = { type: "json_object" };
const IMAGE = { type: "image_url", image_url: {} };
const TWO = { input_ids: [[1], [2]] };

type Row = [path: string, added: object, field: string];

/** Path, what is added to a good body, and the field that the answer must name. */
const BAD: Row[] = [
  ...entriesOf(BAD_SAMPLING).flatMap(([field, value]): Row[] => [
    [COMPLETIONS, { [field]: value }, field],
    [CHAT, { [field]: value }, field],
    [GENERATE, { sampling_params: { max_tokens: 2, [field]: value } }, `sampling_params.${field}`],
  ]),
  ...entriesOf(BAD_EVERYWHERE).flatMap(([field, value]) =>
    [COMPLETIONS, CHAT, GENERATE].map((path): Row => [path, { [field]: value }, field]),
  ),
  ...Object.entries(BAD_OF).flatMap(([path, bad]) =>
    entriesOf(bad).map(([field, value]): Row => [path, { [field]: value }, field]),
  ),
  [COMPLETIONS, { prompt: [[]] }, "prompt.0"],
  [COMPLETIONS, { prompt: [[1], [1001]] }, "prompt.1"],
  [COMPLETIONS, { echo: true, logprobs: 1 }, "echo"],
  [COMPLETIONS, { response_format: { type: "xml" } }, "response_format.type"],
  [COMPLETIONS, { response_format: { type: "json_schema" } }, "response_format.json_schema"],
  [COMPLETIONS, { response_format: ANY_JSON, structured_outputs: ANY_JSON }, "response_format"],
  [COMPLETIONS, { vllm_xargs: { group_id: [1] } }, "group_id"],
  ["/skyrl/v1/generate", { sampling_params: { top_k: 1 } }, "sampling_params.top_k"],
  ["/skyrl/v1/generate", { sampling_params: { top_k: 21 } }, "sampling_params.top_k"],
  ["/skyrl/v1/generate", { sampling_params: { top_k: 4, n: 2 } }, "sampling_params.n"],
  [CHAT, { messages: [{ content: "a" }] }, "messages.0.role"],
  [CHAT, { messages: [{ role: "user", content: 5 }] }, "messages.0.content"],
  [CHAT, { messages: [{ role: "user", content: [IMAGE] }] }, "messages.0.content.0"],
  [CHAT, { tools: [{ type: "function" }] }, "tool_choice"],
  [CHAT, { continue_final_message: true, add_generation_prompt: true }, "continue_final_message"],
  [GENERATE, { sampling_params: { logprobs: -1 } }, "sampling_params.logprobs"],
  [GENERATE, { sampling_params: { detokenize: false, stop: ["a"] } }, "sampling_params.detokenize"],
  [GENERATE, { sampling_params: { bogus: 1 } }, "sampling_params.bogus"],
  ...[[5, 6], []].map((trace_decode_token_ids): Row => {
    const sampling_params = { trace_decode_token_ids };
    return [GENERATE, { sampling_params }, "sampling_params.trace_decode_token_ids"];
  }),
  ["/generate", { text: "both" }, "input_ids"],
  ["/generate", { input_ids: [[1], [1001]] }, "input_ids.1"],
  ["/generate", { logprob_start_len: [-1, 3] }, "logprob_start_len.1"],
  ["/generate", { ...TWO, rid: ["a", "a"] }, "rid"],
  ["/generate", { ...TWO, sampling_params: [{}] }, "sampling_params"],
  ["/generate", { ...TWO, sampling_params: [{ n: 1 }, { n: 2 }] }, "sampling_params"],
  ["/generate", { ...TWO, sampling_params: [{}, { top_p: 2 }] }, "sampling_params.1.top_p"],
  ["/generate", { return_logprob: [true, 1] }, "return_logprob.1"],
  ["/generate", { sampling_params: { stop_regex: "a" } }, "sampling_params.stop_regex"],
  ["/generate", { sampling_params: { min_new_tokens: 500 } }, "sampling_params.min_tokens"],
  ["/tokenize", { messages: [{ role: "user", content: "a" }] }, "prompt"],
  ["/abort_request", {}, "rid"],
];

test("routes: every bad field is a 400 that names it, and the next good request works", async () => {
  const fixture = fixtureOf();
  for (const [path, added, field] of BAD) {
    const response = await fixture.until(fixture.post(path, { ...GOOD[path], ...added }));
    expect([path, added, response.status]).toEqual([path, added, 400]);
    const { error } = (await response.json()) as ErrorSeen;
    const param = error.param?.replace(/(logit_bias)\.\w+$/, "$1");
    expect([path, param, error.code, error.type]).toEqual([path, field, 400, "BadRequestError"]);
    expect(error.message).toContain(field);
  }
  const posts = [...DATA_ROUTES, ...ADAPTER_DATA].filter(({ schema }) => schema !== undefined);
  const asked = posts.map(({ path }) => path).filter((path) => !WITHOUT_A_PROMPT.includes(path));
  expect(Object.keys(GOOD).toSorted()).toEqual(asked.toSorted());
  for (const [path, body] of Object.entries(GOOD)) {
    const response = await fixture.until(fixture.post(path, body));
    expect([path, response.status]).toEqual([path, 200]);
  }
  expect(fixture.failures).toEqual([]);
  expect(fixture.sidecar.rollout.unfinished).toBe(0);
}, 180_000);

test("routes: a body that is no object, or no JSON, is a 400", async () => {
  const fixture = fixtureOf();
  for (const path of Object.keys(GOOD)) {
    for (const body of ["[]", "5", '"a"', "{", ""]) {
      const response = await fixture.post(path, body);
      expect([path, body, response.status]).toEqual([path, body, 400]);
    }
  }
});

test("routes: a null is ignored, even in an unknown field", async () => {
  const fixture = fixtureOf();
  const nulls = { bogus: null, temperature: null, stop: null, best_of: null, logit_bias: null };
  for (const path of [COMPLETIONS, CHAT]) {
    const response = await fixture.until(fixture.post(path, { ...GOOD[path], ...nulls }));
    expect([path, response.status]).toEqual([path, 200]);
  }
  const body = { token_ids: [1], features: null, sampling_params: { max_tokens: 2, ...nulls } };
  expect((await fixture.until(fixture.post(GENERATE, body))).status).toBe(200);
});

test("routes: a model that is not served is a 404 in vLLM's words", async () => {
  const fixture = fixtureOf();
  for (const path of [COMPLETIONS, CHAT, GENERATE, "/tokenize", "/detokenize"]) {
    const response = await fixture.post(path, { ...GOOD[path], model: "other" });
    const { error } = (await response.json()) as ErrorSeen;
    expect([response.status, error.message]).toEqual([404, "The model `other` does not exist."]);
  }
});

test("routes: beyond the context, generate gives what there is room for and completions refuse", async () => {
  const fixture = fixtureOf({ contextTokens: 20, lengthOf: () => 1000 });
  const body = { token_ids: [1, 2], sampling_params: { max_tokens: 500 } };
  const choices = [{ finish_reason: "length" }];
  const full = { usage: { completion_tokens: 18 }, choices };
  expect(await fixture.json(GENERATE, body)).toMatchObject(full);
  const refused = await fixture.post(COMPLETIONS, { prompt: [1, 2], max_tokens: 500 });
  expect(refused.status).toBe(400);
  const chat = { messages: [{ role: "user", content: "too long" }] };
  expect(await fixture.json(CHAT, chat)).toMatchObject({ error: { code: 400 } });
  const cut = { prompt: [1, 2, 3, 4, 5], max_tokens: 18, truncate_prompt_tokens: -1 };
  const truncated = await fixture.json(COMPLETIONS, { ...cut, return_token_ids: true });
  expect(truncated).toMatchObject({ choices: [{ prompt_token_ids: [4, 5] }] });
  // Nobody knows what there is room for while no worker is in service.
  for (const worker of fixture.workers) fixture.sidecar.rollout.removeWorker(worker);
  const early = await fixture.json(CHAT, { ...chat, truncate_prompt_tokens: -1 });
  expect(early).toMatchObject({ error: { code: 503 } });
});

test("routes: completions default to 16 tokens, chat to what the context has room for", async () => {
  const fixture = fixtureOf({ contextTokens: 100, lengthOf: () => 1000 });
  const completion = await fixture.json(COMPLETIONS, { prompt: [1] });
  expect(completion).toMatchObject({ usage: { completion_tokens: 16 } });
  const chat = await fixture.json(CHAT, { messages: [{ role: "user", content: "hi" }] });
  expect(chat).toMatchObject({ usage: { total_tokens: 100 } });
});

test("routes: prompt and name and salt make the group", async () => {
  const fixture = fixtureOf();
  const groups: string[] = [];
  fixture.sidecar.observe({ joined: (request: Wanted) => groups.push(request.spec.groupId) });
  const ask = async (extra: object, headers: Record<string, string> = {}) => {
    const { length } = groups;
    await fixture.json(GENERATE, { ...GOOD[GENERATE], ...extra }, { headers });
    return groups.slice(length).join();
  };
  const plain = await ask({});
  expect(await ask({}, { "x-session-id": "s", "x-smg-routing-key": "k" })).toBe(plain);
  expect(await ask({ token_ids: [2] })).not.toBe(plain);
  const named = await ask({ group_id: "a" });
  expect(named).not.toBe(plain);
  expect(await ask({}, { "x-foretoken-group": "a" })).toBe(named);
  const inside = { sampling_params: { max_tokens: 2, extra_args: { group_id: "a" } } };
  expect(await ask(inside)).toBe(named);
  const salted = await ask({ cache_salt: "s" });
  expect([plain, named]).not.toContain(salted);
  expect(await ask({ cache_salt: "s" })).toBe(salted);
});

test("completions: the fields of a chat that rllm's gateway sends with a later turn's tokens", async () => {
  const fixture = fixtureOf({ lengthOf: () => 1000 });
  const chat = { chat_template_kwargs: { enable_thinking: false }, reasoning_effort: "low" };
  const flags = { add_special_tokens: false, logprobs: true, parallel_tool_calls: false };
  const limits = { top_logprobs: 3, max_completion_tokens: 5, return_token_ids: true };
  const body = { prompt: [1, 2], ...chat, ...flags, ...limits };
  expect(await fixture.json(COMPLETIONS, body)).toMatchObject({
    choices: [{ token_ids: { length: 5 }, logprobs: { token_logprobs: { length: 5 } } }],
  });
});

test("routes: choices of several prompts are in the order of the prompts", async () => {
  const fixture = fixtureOf();
  const body = { prompt: [[1], [2, 3]], n: 2, return_token_ids: true };
  const { choices } = (await fixture.json(COMPLETIONS, body)) as {
    choices: { index: number; prompt_token_ids: number[] }[];
  };
  const rows = choices.map(({ index, prompt_token_ids: prompt }) => `${index}: ${prompt}`);
  expect(rows).toEqual(["0: 1", "1: 1", "2: 2,3", "3: 2,3"]);
});

test("routes: a full queue is a 429, and nothing of the request is left behind", async () => {
  const fixture = fixtureOf({ requestsMax: 3 });
  const response = await fixture.post(COMPLETIONS, { prompt: [[1], [2]], n: 2 });
  expect([response.status, response.headers.get("retry-after")]).toEqual([429, "1"]);
  await fixture.step(30);
  expect(fixture.sidecar.rollout.unfinished).toBe(0);
});

test("routes: a response that is aborted before its first token has empty logprobs, not null", async () => {
  const fixture = fixtureOf({ lengthOf: () => 1000 });
  const answer = fixture.post("/v1/completions", { prompt: [1], max_tokens: 8, logprobs: 1 });
  await fixture.when(() => fixture.sidecar.rollout.unfinished === 1);
  await fixture.post("/abort_request", { abort_all: true });
  const logprobs = { text_offset: [], token_logprobs: [], tokens: [], top_logprobs: [] };
  expect(await (await answer).json()).toMatchObject({ choices: [{ logprobs }] });
});

/** `wanted`: the requests that have joined. */
function observed() {
  const wanted: Wanted[] = [];
  const fixture = fixtureOf();
  fixture.sidecar.observe({ joined: (request) => wanted.push(request) });
  return { fixture, wanted };
}

test("routes: SGLang's custom_params reach no engine, extra_key is a salt", async () => {
  const { fixture, wanted } = observed();
  const custom = { sampling_params: { top_p: 0.9, max_new_tokens: 2, custom_params: { a: 1 } } };
  const post = (more: object) =>
    fixture.until(fixture.post("/generate", { input_ids: [1], ...custom, ...more }));
  const answers = [await post({}), await post({ extra_key: "7" }), await post({ extra_key: "7" })];
  expect(answers.map(({ status }) => status)).toEqual([200, 200, 200]);
  const [plain, salted, again] = wanted;
  expect(plain?.spec.sampling.engineFields).toBeNull();
  expect(plain?.spec.sampling.shaping?.topP).toBe(0.9);
  expect(salted?.group).not.toBe(plain?.group);
  expect(again?.group).toBe(salted?.group as never);
  expect((await post({ lora_path: "none" })).status).toBe(404);
});

test("chat: a turn has the tokens of the turn before, however their text would be encoded", async () => {
  const { fixture, wanted } = observed();
  const ask = async (messages: object[]) => {
    const body = { messages, max_tokens: 40, session_id: "s" };
    const response = await fixture.until(fixture.post(CHAT, body));
    const { choices } = (await response.json()) as { choices: { message: { content: string } }[] };
    return choices[0]?.message.content ?? "";
  };
  const messages = [{ role: "user", content: "a" }];
  const content = await ask(messages);
  await ask([...messages, { role: "assistant", content }, { role: "user", content: "b" }]);
  const [first, second] = wanted.map(({ spec, response }) => [
    ...spec.prompt,
    ...(spec === wanted[0]?.spec ? response.tokens() : []),
  ]);
  expect(second?.slice(0, first?.length)).toEqual(first as number[]);
});

test("names: by header, field or extra argument, each trainer's own header, all held to a name's bounds", async () => {
  const { fixture, wanted } = observed();
  const ask = async (more: object, extra_args: object, headers: Record<string, string> = {}) => {
    const sampling_params = { max_tokens: 2, extra_args };
    const body = { token_ids: [1, 2], sampling_params, ...more };
    return await fixture.until(fixture.post(GENERATE, body, { headers }));
  };
  await ask({}, {}, { "x-session-id": "s" });
  await ask({ session_id: "s" }, {});
  await ask({}, { session_id: "s" });
  await ask({ program_id: "s" }, {});
  expect(wanted.map(({ spec }) => [spec.keepsKv, spec.sampling.engineFields])).toEqual(
    Array(4).fill([true, null]),
  );
  expect(fixture.sidecar.sessions.count).toBe(1);
  const named: unknown[] = [];
  fixture.sidecar.observe({ joined: (_, { session }) => named.push(session) });
  for (const header of ["X-SMG-Routing-Key", "X-Rollout-ID", "X-Attempt-ID", "X-Session-ID"]) {
    await ask({}, {}, { "X-Rollout-ID": "r", [header]: header });
  }
  expect(named).toEqual(["X-SMG-Routing-Key", "X-Rollout-ID", "X-Attempt-ID", "X-Session-ID"]);
  const long = "x".repeat(1025);
  const bound = /^request: ([\w-]+) is "x{3}.*not a text of 1\.\.1024 characters$/;
  for (const [more, extra, headers, field] of [
    [{}, {}, { "x-foretoken-group": long }, "X-Foretoken-Group"],
    [{ group_id: long }, {}, {}, "group_id"],
    [{}, { group_id: long }, {}, "group_id"],
    [{ cache_salt: long }, {}, {}, "cache_salt"],
    [{}, { session_id: long }, {}, "session_id"],
  ] as const) {
    const response = await ask(more, extra, headers);
    const { error } = (await response.json()) as ErrorSeen;
    expect([response.status, bound.exec(error.message)?.[1]]).toEqual([400, field]);
  }
  for (const [more, extra] of [
    [{ session_id: "" }, {}],
    [{}, { session_id: [1] }],
    [{ policy_version: true }, {}],
  ] as const) {
    expect([more, extra, (await ask(more, extra)).status]).toEqual([more, extra, 400]);
  }
});

test("data plane: every body has a schema that names its fields", () => {
  for (const { method, schema } of DATA_ROUTES) expect(schema === undefined).toBe(method === "GET");
  const generate = DATA_ROUTES.find(({ path }) => path === GENERATE)?.schema;
  expect(jsonSchemaOf(generate ?? {})).toMatchObject({
    type: "object",
    required: ["token_ids", "sampling_params"],
    properties: { token_ids: { type: "array", items: { type: "integer" } } },
  });
});

test("fields: an unknown one in a list within a list is told the names that its entry has", () => {
  const inner = v.strictObject({ c: flag });
  const schema = v.strictObject({ a: v.array(v.strictObject({ b: v.array(inner) })) });
  const check = () => checked(schema, { a: [{ b: [{ d: true }] }] });
  expect(check).toThrow("a.0.b.0.d is not known; did you mean c?");
  expect(() => checked(schema, { a: [{ b: [{ b: [] }] }] })).toThrow("belongs in each of a");
});
