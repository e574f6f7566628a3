// Repeated requests, and clients that go away, over HTTP.

import { expect, test } from "bun:test";
import {
  type FixtureOptions,
  ownFixture,
  type PlaneFixture,
} from "../../../test/golden/requests/plane-fixture.ts";
import { tokensIn } from "../../../test/suite/sse.ts";
import { weightEpoch } from "../../core/base/ids.ts";

const GENERATE = "/inference/v1/generate";
const COMPLETIONS = "/v1/completions";
const GRACE_MS = 1_000_000;

/** `joined`: responses that were begun. */
function fixtureOf(options: FixtureOptions = {}) {
  const limits = { graceMs: GRACE_MS, ...options.limits };
  const fixture = ownFixture({ lengthOf: () => 20, ...options, limits });
  const begun: unknown[] = [];
  fixture.sidecar.observe({ joined: (request) => begun.push(request) });
  return { fixture, rollout: fixture.sidecar.rollout, joined: () => begun.length };
}

const body = { token_ids: [1, 2], sampling_params: { max_tokens: 50 } };
const tokensOf = async (answer: Response | Promise<Response>) => {
  const { choices } = (await (await answer).json()) as { choices: { token_ids: number[] }[] };
  return choices[0]?.token_ids ?? [];
};

/** How many of its clients have gone, as its log has it. */
const counted = new WeakMap<PlaneFixture, number>();

/** Sends a request, waits for it to run, and goes away. */
async function leave(fixture: PlaneFixture, path: string, sent: object): Promise<void> {
  const { rollout } = fixture.sidecar;
  const before = rollout.unfinished;
  const controller = new AbortController();
  const answer = fixture.post(path, sent, { signal: controller.signal });
  const failed = answer.then((response) => response.text()).catch(() => "gone");
  await fixture.when(() => rollout.unfinished > before);
  await fixture.step(2);
  controller.abort();
  expect(await failed).toBe("gone");
  // The server hears of it a little later than the client; 499 stands in its log then.
  if ("stream" in sent) return;
  const gone = () => fixture.statuses.filter((status) => status === 499).length;
  const before499 = counted.get(fixture) ?? 0;
  await fixture.when(() => gone() > before499);
  counted.set(fixture, gone());
}

test("retries: the same id and body, in flight, get the same responses", async () => {
  const { fixture, joined } = fixtureOf();
  const first = fixture.post(GENERATE, { ...body, request_id: "a" });
  await fixture.when(() => joined() === 1);
  const second = fixture.post(GENERATE, { ...body, request_id: "a" });
  const [one, two] = await fixture.until(Promise.all([first, second]));
  expect(await one.text()).toBe(await two.text());
  expect(joined()).toBe(1);
});

test("retries: the same id and body get the finished responses again, until the grace ends", async () => {
  const { fixture, joined } = fixtureOf();
  const send = () => fixture.until(fixture.post(GENERATE, { ...body, request_id: "a" }));
  const first = await tokensOf(send());
  expect(await tokensOf(send())).toEqual(first);
  expect(joined()).toBe(1);
  fixture.pass(GRACE_MS + 1);
  expect(await tokensOf(send())).not.toEqual(first);
  expect(joined()).toBe(2);
});

test("retries: another body under an id that is being served is a 409", async () => {
  const { fixture, joined } = fixtureOf();
  const first = fixture.post(GENERATE, { ...body, request_id: "a" });
  await fixture.when(() => joined() === 1);
  const other = { ...body, token_ids: [3], request_id: "a" };
  const refused = await fixture.post(GENERATE, other);
  const message = 'request_id: another request with the id "a" is being served';
  const error = { message, type: "ConflictError", param: null, code: 409 };
  expect([refused.status, await refused.json()]).toEqual([409, { error }]);
  expect((await fixture.until(first)).status).toBe(200);
  expect((await fixture.until(fixture.post(GENERATE, other))).status).toBe(200);
  expect(joined()).toBe(2);
});

test("retries: four equal requests get four samples; one X-Request-Id of all names their answers", async () => {
  const { fixture, joined } = fixtureOf();
  const sent = { headers: { "x-request-id": "trace-1" } };
  const all = Array.from({ length: 4 }, () => fixture.post(GENERATE, body, sent));
  await fixture.when(() => joined() === 4);
  const answers = await fixture.until(Promise.all(all));
  const read = await Promise.all(answers.map((answer) => answer.json()));
  expect(new Set(read.map((one) => `${Object(one).choices[0].token_ids}`)).size).toBe(4);
  for (const one of read) expect(one).toMatchObject({ request_id: "generate-tokens-trace-1" });
  // Nor afterwards.
  await fixture.json(GENERATE, body, sent);
  expect(joined()).toBe(5);
});

test("retries: the body's id identifies a repetition, whatever header the gateway adds", async () => {
  const { fixture, joined } = fixtureOf();
  for (const header of ["h", "i"]) {
    const headers = { "x-request-id": header };
    const answer = await fixture.json(GENERATE, { ...body, request_id: "a" }, { headers });
    // Of the one that began it.
    expect(answer).toMatchObject({ request_id: "generate-tokens-h" });
  }
  expect(joined()).toBe(1);
});

test("retries: without an id a request ends with its client, and the next equal one is another draw", async () => {
  for (const stream of [{}, { stream: true }]) {
    const { fixture, joined, rollout } = fixtureOf();
    await leave(fixture, GENERATE, { ...body, ...stream });
    await fixture.when(() => rollout.unfinished === 0);
    await fixture.json(GENERATE, body);
    expect(joined()).toBe(2);
  }
});

test("retries: with an id, the same body takes over what a client left", async () => {
  const { fixture, joined, rollout } = fixtureOf();
  await leave(fixture, GENERATE, { ...body, request_id: "a" });
  expect(rollout.unfinished).toBe(1);
  await fixture.json(GENERATE, body);
  expect(joined()).toBe(2);
  await fixture.json(GENERATE, { ...body, request_id: "a" });
  expect(joined()).toBe(2);
});

test("retries: what was left is finished in the meantime, and kept", async () => {
  const { fixture, joined, rollout } = fixtureOf();
  const sent = { prompt: [1], n: 2, request_id: "a" };
  await leave(fixture, COMPLETIONS, sent);
  await fixture.step(40);
  expect(rollout.unfinished).toBe(0);
  const response = await fixture.post(COMPLETIONS, sent);
  expect(await response.json()).toMatchObject({ usage: { completion_tokens: 32 } });
  expect(joined()).toBe(2);
});

test("retries: a job without a client is aborted after the grace time", async () => {
  const { fixture, rollout } = fixtureOf({ lengthOf: () => 1000 });
  await leave(fixture, GENERATE, { token_ids: [1], sampling_params: {}, request_id: "a" });
  expect(rollout.unfinished).toBe(1);
  fixture.pass(GRACE_MS + 1);
  expect(rollout.unfinished).toBe(0);
});

test("retries: beyond the bound, the oldest request without a client is given up", async () => {
  const { fixture, rollout } = fixtureOf({ lengthOf: () => 1000, limits: { leftMax: 2 } });
  for (const token of [1, 2, 3]) {
    await leave(fixture, GENERATE, { ...body, request_id: `${token}` });
  }
  expect(rollout.unfinished).toBe(2);
});

test("retries: a stream with an id is sent from its beginning to the client that reconnects", async () => {
  const { fixture, joined } = fixtureOf();
  const streamed = { ...body, stream: true, request_id: "s" };
  await leave(fixture, GENERATE, streamed);
  const { events, isDone } = await fixture.events(GENERATE, streamed);
  expect([joined(), isDone]).toEqual([1, true]);
  expect(tokensIn(events)).toHaveLength(20);
});

test("retries: new weights end what was kept of the old ones", async () => {
  const { fixture, joined, rollout } = fixtureOf({ lengthOf: () => 30 });
  await fixture.json(GENERATE, { ...body, request_id: "a" });
  await leave(fixture, GENERATE, { ...body, request_id: "b" });
  fixture.sidecar.advance(weightEpoch(1));
  expect(rollout.unfinished).toBe(0);
  for (const id of ["a", "b"]) await fixture.json(GENERATE, { ...body, request_id: id });
  expect(joined()).toBe(4);
});

test("retries: an aborted request is generated again for a retry", async () => {
  const { fixture, joined, rollout } = fixtureOf();
  const named = fixture.post(GENERATE, { ...body, request_id: "a" });
  await fixture.when(() => joined() === 1);
  const left = { ...body, request_id: "b" };
  await leave(fixture, GENERATE, left);
  await fixture.until(rollout.pause("abort"));
  rollout.resume();
  expect(await tokensOf(named)).toHaveLength(2);
  await fixture.step(2);
  expect(await tokensOf(fixture.until(fixture.post(GENERATE, left)))).toHaveLength(20);
  const again = fixture.post(GENERATE, { ...body, request_id: "a" });
  expect(await tokensOf(fixture.until(again))).toHaveLength(20);
  expect(joined()).toBe(4);
});
