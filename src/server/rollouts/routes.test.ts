// The rollout API over simulated workers, at its routes.

import { expect, test } from "bun:test";
import { exchangeOf } from "../../../test/suite/exchange.ts";
import { ManualTimers } from "../../../test/suite/manual-clock.ts";
import { Bed } from "../../../test/suite/sidecar-bed.ts";
import { InvalidFieldError } from "../../core/base/errors.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import { drawKey } from "../../core/request/request.ts";
import { inlineEncoder } from "../../text/encoder.ts";
import type { Text } from "../../text/text.ts";
import { ChatRenderer } from "../openai/rendering.ts";
import { type Exchange, Router } from "../route.ts";
import type { RolloutLimits } from "./plan.ts";
import { rolloutSide } from "./routes.ts";

const VOCABULARY = 1000;

/** A token is the code point of a character. */
const text: Text = {
  vocabularySize: VOCABULARY,
  encode: (input) => Int32Array.from([...input].map((char) => char.codePointAt(0) ?? 0)),
  decode: (tokens) => String.fromCodePoint(...Array.from(tokens)),
  detokenizer: () => ({
    push: (tokens) => text.decode(tokens, { skipSpecial: true }),
    flush: () => "",
  }),
  bytes: (token) => new TextEncoder().encode(String.fromCodePoint(token)),
  renderChat: (chat) => {
    const { messages, tools, add_generation_prompt: adds = true } = JSON.parse(chat);
    let turns = tools === undefined ? "" : "T";
    for (const { role, content } of messages) {
      if (role === "robot") {
        throw new InvalidFieldError({ where: "chat", field: "messages", problem: "no robots" });
      }
      turns += `${role[0]}${content[0].text ?? content}`;
    }
    return `${turns}${adds ? "A" : ""}`;
  },
};

/** Deadlines of clients that read nothing. */
const stalls = new ManualTimers();

function world(limits: Partial<RolloutLimits> = {}, length = 20) {
  const bed = new Bed({ workers: 2, lengthOf: ({ sampleIndex }) => length + sampleIndex });
  const { sidecar, clock } = bed;
  const encoder = inlineEncoder(text);
  const { routes, known } = rolloutSide({
    sidecar,
    text,
    encoder,
    chats: new ChatRenderer({ encoder, engines: null }),
    eosTokenIds: [0],
    adapterOf: () => null,
    clock,
    versionOf: String,
    files: null,
    held: () => ({ weights: null, base: "unknown" }),
    limits,
    later: stalls.later,
  });
  const router = new Router(routes);
  const call = (
    method: string,
    path: string,
    body: unknown = null,
    fields: Partial<Exchange> = {},
  ) => router.handle(exchangeOf(method, path, body, fields));
  const kept = () => known.kept;
  /** A rollout from its request to its last line. */
  const roll = async (fields: Record<string, unknown> = {}) => {
    const lines = linesOf(await call("POST", "/v1/rollouts", body(fields)));
    await bed.finish();
    return await lines;
  };
  return { ...bed, step: () => bed.step(), finish: () => bed.finish(), call, roll, kept };
}

const body = (fields: Record<string, unknown> = {}) => ({
  id: "iteration-1",
  groups: [
    { id: "a", prompt: "abc", n: 2 },
    { id: "b", token_ids: [1, 2], n: 3, sampling_params: { max_tokens: 5 } },
  ],
  sampling_params: { max_tokens: 50, seed: 7 },
  ...fields,
});

async function linesOf(response: Response): Promise<Record<string, unknown>[]> {
  const lines = (await response.text()).trimEnd().split("\n");
  return lines.map((line) => JSON.parse(line) as Record<string, unknown>);
}

test("POST /v1/rollouts: streams every group's responses, then a summary", async () => {
  const lines = await world().roll();
  const responses = lines.slice(0, -1).map((line) => [line.group, line.index, line.finish_reason]);
  expect(responses).toEqual([
    ["b", 0, "length"],
    ["b", 1, "length"],
    ["b", 2, "length"],
    ["a", 0, "stop"],
    ["a", 1, "stop"],
  ]);
  expect(lines[3]?.prompt_token_ids).toEqual([97, 98, 99]);
  expect(lines[3]?.token_ids).toHaveLength(20);
  expect(lines[3]?.logprobs).toHaveLength(20);
  expect(lines.at(-1)).toMatchObject({
    rollout: "iteration-1",
    state: "finished",
    report: { groups: 2, finished_requests: 5, output_tokens: 56, interrupted: false },
  });
});

test("POST /v1/rollouts: its end is that of an iteration, told when all of its groups are complete", async () => {
  const { call, roll, sidecar, step } = world();
  const told: string[] = [];
  sidecar.observe({
    // A group that is complete leaves the engines at once, and not with the rollout.
    groupFinished: () => told.push(`group, ${sidecar.rollout.unfinished} left`),
    rolloutOver: () => told.push(`over, ${sidecar.rollout.unfinished} left`),
  });
  await roll();
  expect(told).toEqual(["group, 2 left", "group, 0 left", "over, 0 left"]);
  void call("POST", "/v1/rollouts", body({ id: "two" }));
  await step();
  await call("DELETE", "/v1/rollouts/two");
  expect(told.at(-1)).toBe("over, 0 left");
});

test("POST /v1/rollouts: messages become prompts by the model's chat template", async () => {
  const messages = [
    { role: "user", content: "xy" },
    { role: "assistant", content: [{ type: "text", text: "z" }] },
  ];
  const groups = [
    { id: "chat", messages, tools: [{ name: "t" }] },
    { id: "open", messages, add_generation_prompt: false },
    { id: "text", prompt: "p" },
  ];
  const lines = await world().roll({ groups });
  const promptOf = (id: string) => {
    const ids = lines.find(({ group }) => group === id)?.prompt_token_ids;
    return String.fromCodePoint(...(ids as number[]));
  };
  expect([promptOf("chat"), promptOf("open"), promptOf("text")]).toEqual(["TuxyazA", "uxyaz", "p"]);
});

test("NDJSON: a line is one for readers that split at every line end of Unicode, and its texts are as they were", async () => {
  const { call, finish } = world();
  const odd = "\u0085\u2028\u2029";
  const groups = [{ id: odd, prompt: "abc", n: 1 }];
  const answer = await call("POST", "/v1/rollouts", body({ id: odd, groups }));
  await finish();
  const written = await answer.text();
  expect(written).not.toMatch(/[\u0085\u2028\u2029]/);
  const [response, summary] = written.split("\n").map((line) => line && JSON.parse(line));
  expect([response.group, summary.rollout]).toEqual([odd, odd]);
});

test("POST /v1/rollouts: a finished group is sent while others run", async () => {
  const { call, step, finish } = world();
  const reader = (await call("POST", "/v1/rollouts", body())).body?.getReader();
  const first = reader?.read();
  for (let i = 0; i < 8; i += 1) await step();
  const { value } = (await first) ?? {};
  expect(new TextDecoder().decode(value).split("\n").length).toBe(4);
  const state = (await (await call("GET", "/v1/rollouts/iteration-1")).json()) as object;
  expect(state).toMatchObject({ state: "running", progress: { finished_groups: 1 } });
  await finish();
});

test("POST /v1/rollouts: the same id and body attach, another body is a conflict", async () => {
  const { call, sidecar, finish } = world();
  const first = linesOf(await call("POST", "/v1/rollouts", body()));
  const second = linesOf(await call("POST", "/v1/rollouts", body()));
  expect(sidecar.rollout.unfinished).toBe(5);
  const other = call("POST", "/v1/rollouts", body({ n: 3 }));
  await expect(other).rejects.toMatchObject({ code: "conflict" });
  await finish();
  expect(await second).toEqual(await first);
});

test("GET /v1/rollouts/:id/groups: begins at a finished group's number", async () => {
  const { call, roll } = world();
  const all = await roll();
  const rest = await linesOf(await call("GET", "/v1/rollouts/iteration-1/groups?from=1"));
  expect(rest).toEqual(all.slice(3));
  const beyond = call("GET", "/v1/rollouts/iteration-1/groups?from=3");
  await expect(beyond).rejects.toMatchObject({ code: "invalid_field" });
});

test("DELETE /v1/rollouts/:id: ends the stream with a summary, and frees the id", async () => {
  const { call, sidecar, step, roll } = world();
  const lines = linesOf(await call("POST", "/v1/rollouts", body()));
  await step();
  await call("DELETE", "/v1/rollouts/iteration-1");
  expect(sidecar.rollout.unfinished).toBe(0);
  expect(await lines).toMatchObject([
    { state: "cancelled", report: { finished_requests: 0, finish_reasons: { abort: 5 } } },
  ]);
  expect((await roll({ n: 3 })).at(-1)).toMatchObject({ state: "finished" });
});

test("a client that has gone takes its rollout with it, unless it is detached or another one reads it", async () => {
  for (const [detached, isRead] of [
    [false, false],
    [true, false],
    [false, true],
  ]) {
    const { call, sidecar, step, finish } = world();
    const gone = new AbortController();
    await call("POST", "/v1/rollouts", body({ detached }), { signal: gone.signal });
    const lines = isRead ? linesOf(await call("POST", "/v1/rollouts", body({ detached }))) : null;
    await step();
    gone.abort();
    expect(sidecar.rollout.unfinished).toBe(detached || isRead ? 5 : 0);
    await finish();
    if (lines !== null) expect((await lines).length).toBe(6);
  }
});

test("a client that takes nothing for too long is dropped, and its rollout with it", async () => {
  stalls.clear();
  const { call, step, sidecar } = world();
  const answer = await call("POST", "/v1/rollouts", {
    id: "r",
    groups: [
      { id: "a", token_ids: [1], n: 1 },
      { id: "b", token_ids: [2], n: 2 },
    ],
    sampling_params: { max_tokens: 90 },
  });
  const reader = answer.body?.getReader();
  const first = reader?.read();
  while (stalls.size === 0) await step();
  await first;
  expect(stalls.size).toBe(1);
  stalls.run();
  await expect(reader?.read() ?? Promise.resolve()).rejects.toThrow("the client took nothing");
  expect(sidecar.rollout.unfinished).toBe(0);
});

test("results that are over are dropped, oldest first, beyond the bound", async () => {
  const { call, roll } = world({ keptBytesMax: 20_000 });
  for (const id of ["one", "two"]) await roll({ id });
  const { rollouts } = (await (await call("GET", "/v1/rollouts")).json()) as {
    rollouts: { id: string }[];
  };
  expect(rollouts.map(({ id }) => id)).toEqual(["two"]);
  await expect(call("GET", "/v1/rollouts/one")).rejects.toMatchObject({ code: "not_found" });
});

test("a cancelled rollout keeps neither its prompts nor what it had of responses", async () => {
  const { call, sidecar, step, kept } = world();
  const prompt = Array.from({ length: 800 }, (_, i) => i);
  for (let i = 0; i < 50; i += 1) {
    const groups = [0, 1].map((group) => ({ id: `g${group}`, token_ids: [i, ...prompt], n: 2 }));
    const fields = { groups, sampling_params: { max_tokens: 90 } };
    const lines = linesOf(await call("POST", "/v1/rollouts", { id: `r${i}`, ...fields }));
    for (let n = 0; n < 5; n += 1) await step();
    await call("DELETE", `/v1/rollouts/r${i}`);
    await lines;
  }
  expect(kept()).toMatchObject({ bytes: 0, count: 50 });
  expect(sidecar.kept).toMatchObject({ bytes: 0, count: 0 });
  expect(sidecar.rollout.unfinished).toBe(0);
  // It still says what it was.
  const answer = await call("GET", "/v1/rollouts/r7");
  expect(await answer.json()).toMatchObject({ state: "cancelled", report: { interrupted: true } });
});

test("limits: too many rollouts get a Retry-After, too many responses are refused", async () => {
  const { call, finish } = world({ rolloutsMax: 1, requestsMax: 5 });
  const lines = linesOf(await call("POST", "/v1/rollouts", body()));
  const second = call("POST", "/v1/rollouts", body({ id: "two" }));
  await expect(second).rejects.toMatchObject({ code: "queue_full" });
  const big = call("POST", "/v1/rollouts", body({ groups: [{ id: "a", prompt: "x", n: 6 }] }));
  await expect(big).rejects.toMatchObject({ code: "invalid_field", field: "groups" });
  await finish();
  await lines;
});

test("a group that cannot be served leaves nothing behind, and is named", async () => {
  const { call, sidecar } = world();
  const groups = [
    { id: "fine", prompt: "x" },
    { id: "long", prompt: "x", sampling_params: { max_tokens: 5000 } },
  ];
  const message = expect.stringContaining('group "long"');
  const answer = call("POST", "/v1/rollouts", body({ groups }));
  await expect(answer).rejects.toMatchObject({ code: "context_length_exceeded", message });
  expect(sidecar.rollout.unfinished).toBe(0);
});

test.each([
  [{ groups: [] }, "groups"],
  [{ groups: [{ id: "a" }] }, "groups.0.prompt"],
  [{ groups: [{ id: "a", prompt: "x", token_ids: [1] }] }, "groups.0.prompt"],
  [{ groups: [{ id: "a", prompt: "x", messages: [] }] }, "groups.0.prompt"],
  [{ groups: [{ id: "a", messages: [] }] }, "groups.0.messages"],
  [{ groups: [{ id: "a", messages: [{ content: "x" }] }] }, "groups.0.messages.0.role"],
  [
    { groups: [{ id: "a", messages: [{ role: "user", content: [1] }] }] },
    "groups.0.messages.0.content.0",
  ],
  [{ groups: [{ id: "a", prompt: "x", tools: [{}] }] }, "groups.0.tools"],
  [{ groups: [{ id: "a", messages: [{ role: "robot", content: "x" }] }] }, "groups.0.messages"],
  [{ groups: [{ id: "a", token_ids: [1, VOCABULARY] }] }, "groups.0.token_ids.1"],
  [{ groups: [{ id: "a", token_ids: [] }] }, "groups.0.token_ids"],
  [
    {
      groups: [
        { id: "a", prompt: "x" },
        { id: "a", prompt: "y" },
      ],
    },
    "groups.1.id",
  ],
  [{ sampling_params: {} }, "groups.0.sampling_params.max_tokens"],
  [{ sampling_params: { max_tokens: 5, stop: "." } }, "sampling_params.stop"],
  [{ temperature: 1 }, "temperature"],
  [{ on_policy: "loose" }, "on_policy"],
])("POST /v1/rollouts: refuses %j by the name of the field", async (fields, field) => {
  const { call } = world();
  await expect(call("POST", "/v1/rollouts", body(fields))).rejects.toMatchObject({ field });
});

test.each([
  [{ groups: [{ id: "a", prompt: "x", max_tokens: 5 }] }, "belongs in sampling_params"],
  [{ max_tokens: 5 }, "max_tokens is not known here; it belongs in sampling_params"],
  [{ messages: [] }, "messages is not known here; it belongs in each of groups"],
  [{ samplingParams: {} }, "samplingParams is not known; did you mean sampling_params?"],
  [{ sampling_params: { max_token: 5 } }, "did you mean max_tokens?"],
  [{ sampling_params: { n: 5 } }, "sampling_params.n is not known here; it belongs in the body"],
  [{ deadline: { group_s: 5 } }, "DELETE /v1/rollouts/:id/groups/:group"],
  [{ budget: 5 }, "budget is not known; known are carry_from, deadline, detached"],
])("POST /v1/rollouts: %j is answered with where it belongs", async (fields, message) => {
  const { call } = world();
  const answer = call("POST", "/v1/rollouts", body(fields));
  await expect(answer).rejects.toMatchObject({ message: expect.stringContaining(message) });
});

interface Line {
  readonly token_ids?: number[];
  readonly weight_epoch: number | null;
  readonly finish_reason?: string;
  readonly error?: { message: string };
  readonly chunks?: { tokens: number; weight_epoch: number }[];
  readonly report?: { weight_epoch: number | null; weight_epochs: number[] };
}

/** Runs the rollout while the weights change `updates` times, every `steps` steps. */
async function updated(
  fields: Record<string, unknown>,
  { updates, steps }: { updates: number; steps: number },
): Promise<Line[]> {
  const { call, sidecar, step, finish } = world({}, 30);
  const answered = linesOf(await call("POST", "/v1/rollouts", body(fields)));
  for (let epoch = 1; epoch <= updates; epoch += 1) {
    for (let i = 0; i < steps; i += 1) await step();
    sidecar.advance(weightEpoch(epoch));
  }
  await finish();
  return (await answered) as unknown as Line[];
}

const epochsOf = ({ chunks = [] }: Line) => [
  ...new Set(chunks.filter(({ tokens }) => tokens > 0).map((chunk) => chunk.weight_epoch)),
];

test("on_policy: by default no response has tokens of two weight epochs; no response is lost or cut", async () => {
  for (const steps of [1, 3, 7]) {
    const lines = await updated({}, { updates: 3, steps });
    const responses = lines.slice(0, -1);
    expect(responses.length).toBe(5);
    for (const line of responses) {
      expect(epochsOf(line)).toEqual([line.weight_epoch as number]);
      expect(line.chunks?.reduce((sum, { tokens }) => sum + tokens, 0)).toBe(
        line.token_ids?.length,
      );
      expect(["stop", "length"]).toContain(line.finish_reason as string);
    }
    const lengths = responses.map(({ token_ids: ids }) => ids?.length ?? 0).sort((a, b) => a - b);
    expect(lengths).toEqual([5, 5, 5, 30, 31]);
  }
});

test("on_policy mixed: a response continues under new weights, and every chunk has its epoch", async () => {
  const lines = await updated({ on_policy: "mixed" }, { updates: 2, steps: 7 });
  const mixed = lines.slice(0, -1).filter((line) => epochsOf(line).length > 1);
  expect(mixed.length).toBeGreaterThan(0);
  for (const line of mixed) expect(line.weight_epoch).toBeNull();
  expect(lines.at(-1)?.report).toMatchObject({ weight_epoch: null, weight_epochs: [0, 1, 2] });
});

test("on_policy strict: a rollout all of whose responses were given up has failed, and says why", async () => {
  // Every response is longer than an epoch lasts.
  const groups = [{ id: "a", prompt: "abc", n: 3 }];
  const lines = await updated({ groups }, { updates: 20, steps: 2 });
  // Not one of them goes on for ever.
  expect(lines.slice(0, -1)).toMatchObject(
    Array(3).fill({
      finish_reason: "abort",
      error: { message: expect.stringContaining("the weights changed 17 times") },
    }),
  );
  expect(lines.at(-1)).toMatchObject({
    state: "failed",
    error: { message: expect.stringContaining("the weights changed 17 times") },
    report: { finish_reasons: { abort: 3 } },
  });
});

const GROUPS = ["a", "b", "c"].map((id, i) => ({ id, token_ids: [i + 1], n: 4 }));

test("finish_first: a group is whole with the first responses to finish, and the report has the bias", async () => {
  const { call, roll, sidecar } = world();
  const lines = await roll({ groups: GROUPS, finish_first: 3 });
  const taken = lines.slice(0, -1);
  expect(taken.map(({ finish_reason }) => finish_reason)).toEqual(taken.map(() => "stop"));
  for (const { id } of GROUPS) expect(taken.filter(({ group }) => group === id)).toHaveLength(3);
  expect(lines.at(-1)).toMatchObject({
    report: { returned_requests: 9, length_bias: expect.any(Number) },
  });
  expect(sidecar.rollout.unfinished).toBe(0);
  const wrong = call("POST", "/v1/rollouts", body({ id: "x", groups: GROUPS, finish_first: 5 }));
  await expect(wrong).rejects.toMatchObject({ code: "invalid_field" });
});

/** The rollouts "one", which ends with its first whole group, and "two", which goes on with the others. */
async function carried(epochs: number, fields: Record<string, unknown>) {
  const { call, roll, sidecar } = world({}, 40);
  const groups = GROUPS.map((group) =>
    group.id === "a" ? { ...group, sampling_params: { max_tokens: 3 } } : group,
  );
  const first = await roll({ id: "one", groups, finish_groups: 1 });
  for (let epoch = 1; epoch <= epochs; epoch += 1) sidecar.advance(weightEpoch(epoch));
  const own = [{ id: "d", token_ids: [9] }];
  const second = await roll({ id: "two", groups: own, carry_from: "one", ...fields });
  return { first, second, call };
}

test("carry_from: groups that were not whole go on with their tokens, and each chunk has its epoch", async () => {
  const { first, second, call } = await carried(1, { max_staleness: 1 });
  expect(first.map(({ group }) => group)).toEqual(["a", "a", "a", "a", undefined]);
  expect(first.at(-1)).toMatchObject({ state: "finished", report: { carried_groups: 2 } });
  expect(second.slice(0, -1).map(({ group }) => group)).toEqual(
    expect.arrayContaining(["b", "c", "d"]),
  );
  const carriedOn = second.filter(({ weight_epoch: epoch }) => epoch === null);
  expect(carriedOn.length).toBeGreaterThan(0);
  for (const { chunks, token_ids: ids, logprobs } of carriedOn) {
    const made = chunks as { weight_epoch: number; tokens: number }[];
    expect(new Set(made.map(({ weight_epoch: epoch }) => epoch))).toEqual(new Set([0, 1]));
    expect((ids as number[]).length).toBeGreaterThanOrEqual(40);
    expect(logprobs).toHaveLength((ids as number[]).length);
  }
  const again = await call("POST", "/v1/rollouts", body({ id: "three", carry_from: "one" }));
  expect(again.headers.get("x-rollout-id")).toBe("three");
  await call("DELETE", "/v1/rollouts/three");
});

test("carry_from: tokens older than max_staleness are made anew; without it, all of an earlier epoch", async () => {
  for (const [epochs, fields] of [
    [2, { max_staleness: 1 }],
    [1, {}],
  ] as const) {
    const { second } = await carried(epochs, fields);
    const epochsOf = second.slice(0, -1).map((line) => line.weight_epoch);
    expect(new Set(epochsOf)).toEqual(new Set([epochs]));
  }
});

test("carry_from: goes on with the oldest rollout where there is no room for another", async () => {
  const { call, roll } = world({ rolloutsMax: 2 }, 40);
  await roll({ id: "one", groups: GROUPS, finish_groups: 1 });
  await roll({ id: "two" });
  const known = async () => {
    const listed = (await (await call("GET", "/v1/rollouts")).json()) as {
      rollouts: { id: string }[];
    };
    return listed.rollouts.map(({ id }) => id);
  };
  // A request that is refused costs nothing.
  const twice = call("POST", "/v1/rollouts", body({ id: "x", groups: GROUPS, carry_from: "one" }));
  await expect(twice).rejects.toMatchObject({ field: "groups.1.id" });
  const absent = call("POST", "/v1/rollouts", body({ id: "x", carry_from: "none" }));
  await expect(absent).rejects.toMatchObject({ code: "not_found" });
  expect(await known()).toEqual(["one", "two"]);
  const own = [{ id: "d", token_ids: [9], n: 1 }];
  const lines = await roll({ id: "three", groups: own, carry_from: "one" });
  expect(new Set(lines.slice(0, -1).map(({ group }) => group)).size).toBe(3);
  expect(await known()).toEqual(["two", "three"]);
});

test("rollouts: groups and responses are added while it runs, and a group is given up", async () => {
  const { call, finish, step } = world();
  const seeded = { max_tokens: 100, seed: 7 };
  const open = { id: "steered", open: true, n: 2, sampling_params: seeded };
  const groups = [
    { id: "a", token_ids: [1] },
    { id: "b", token_ids: [2] },
  ];
  const lines = linesOf(await call("POST", "/v1/rollouts", { ...open, groups }));
  await step();
  const change = async (body: object) => {
    const answer = await call("POST", "/v1/rollouts/steered/groups", body);
    return Object(await answer.json());
  };
  const more = { groups: [{ id: "a", n: 3, from: 2 }], open: true };
  expect(await change(more)).toMatchObject({ added_requests: 3, progress: { requests: 7 } });
  // The same request again adds nothing.
  expect(await change(more)).toMatchObject({ added_requests: 0, progress: { requests: 7 } });
  const fresh = { id: "c", token_ids: [3], from: 0 };
  await change({ n: 1, groups: [fresh], sampling_params: seeded });
  const again = await change({ n: 1, groups: [fresh], sampling_params: seeded });
  expect(again).toMatchObject({ added_requests: 0, progress: { requests: 8 } });
  const gone = await call("DELETE", "/v1/rollouts/steered/groups/b");
  expect(Object(await gone.json())).toMatchObject({ given_up_requests: 2 });
  await finish();
  expect(Object(await (await call("GET", "/v1/rollouts/steered")).json())).toMatchObject({
    state: "running",
  });
  await change({ groups: [], open: false });
  await finish();
  const all = await lines;
  expect(all.at(-1)).toMatchObject({
    state: "finished",
    report: { added_groups: 2, added_requests: 4, given_up_groups: 1, finished_groups: 3 },
  });
  const named = all.slice(0, -1).map(({ group, index }) => `${group}${index}`);
  expect(named.toSorted()).toEqual(["a0", "a1", "a2", "a3", "a4", "c0"]);
  await expect(change({ groups: [{ id: "a", n: 1 }] })).rejects.toThrow("is finished");
});

test("rollouts: added responses have the random numbers of one larger group", async () => {
  const { call, finish, sidecar } = world();
  const body = { id: "one", open: true, n: 2, sampling_params: { max_tokens: 9, seed: 3 } };
  await call("POST", "/v1/rollouts", { ...body, groups: [{ id: "a", token_ids: [1] }] });
  const draws: unknown[] = [];
  sidecar.observe({ joined: (request) => draws.push(request.spec.draw) });
  await call("POST", "/v1/rollouts/one/groups", { n: 2, groups: [{ id: "a" }], open: false });
  expect(draws).toEqual([drawKey(3, "a", 2), drawKey(3, "a", 3)]);
  await finish();
});

test("rollouts: a change that cannot be made is refused, and changes nothing", async () => {
  const { call, finish } = world({ requestsMax: 6 });
  const body = { id: "one", open: true, n: 2, sampling_params: { max_tokens: 9 } };
  await call("POST", "/v1/rollouts", { ...body, groups: [{ id: "a", token_ids: [1] }] });
  const wrong: [object, string][] = [
    [{ groups: [{ id: "a", token_ids: [1] }] }, "groups.0.token_ids is given, but the rollout has"],
    [{ groups: [{ id: "x" }], sampling_params: { max_tokens: 2 } }, "groups.0.prompt is missing"],
    [{ groups: [{ id: "x", token_ids: [1] }] }, "sampling_params.max_tokens is missing"],
    [{ groups: [{ id: "a", n: 5 }] }, "ask for 5 responses beside 2, more than 6"],
    [{ groups: [{ id: "a", from: 0 }] }, "has 2 responses, not 0"],
    [{ groups: [{ id: "x", token_ids: [1], from: 3 }] }, "has 0 responses, not 3"],
    // Two parts of a group would have the same indices and random numbers.
    [{ groups: [{ id: "a" }, { id: "a" }] }, "groups.1.id is a, as an earlier one"],
    [{ groups: [{ id: "a", sampling_params: { max_tokens: 2 } }] }, "groups.0.sampling_params is"],
    [{ groups: [{ id: "a", tools: [] }] }, "groups.0.tools is given, but the rollout has"],
    [{ groups: [{ id: "a", n: 2, finish_first: 3 }] }, "groups.0.finish_first is 3 of 2 responses"],
    [{ groups: [{ id: "a" }, { id: "x" }] }, "groups.1.sampling_params.max_tokens is missing"],
  ];
  for (const [change, message] of wrong) {
    await expect(call("POST", "/v1/rollouts/one/groups", change)).rejects.toThrow(message);
  }
  await expect(call("DELETE", "/v1/rollouts/one/groups/z")).rejects.toThrow('no group "z"');
  // The first of them begins, and is taken back.
  const half = ["x", "y"].map((id, i) => {
    return { id, token_ids: [1], sampling_params: { max_tokens: 9 + 5000 * i } };
  });
  const added = call("POST", "/v1/rollouts/one/groups", { groups: half });
  await expect(added).rejects.toMatchObject({ code: "context_length_exceeded" });
  const state = Object(await (await call("GET", "/v1/rollouts/one")).json());
  const progress = { groups: 1, requests: 2, finished_requests: 0 };
  expect(state).toMatchObject({ state: "running", progress });
  const x = { id: "x", token_ids: [1], sampling_params: { max_tokens: 9 } };
  await call("POST", "/v1/rollouts/one/groups", { groups: [x], open: false });
  await finish();
  const ended = Object(await (await call("GET", "/v1/rollouts/one")).json());
  expect(ended).toMatchObject({ state: "finished", report: { finished_requests: 3 } });
});
