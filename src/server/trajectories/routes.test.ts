// Sessions over HTTP, as an agent and its trainer see them: every way to name one, what a trajectory holds, and the
// reasons for which it is not whole.

import { expect, test } from "bun:test";
import { type FixtureOptions, ownFixture } from "../../../test/golden/requests/plane-fixture.ts";
import type { ExportedSession } from "../../../test/suite/exported-session.ts";

const GENERATE = "/inference/v1/generate";

function bedOf(options: FixtureOptions = {}) {
  const fixture = ownFixture(options);
  const get = async (path: string, init: RequestInit = {}) => await fetch(fixture.url + path, init);
  return {
    fixture,
    get,
    trajectory: async (path: string, init: RequestInit = {}): Promise<ExportedSession> => {
      const response = await get(path, init);
      expect([path, response.status]).toEqual([path, 200]);
      const body: unknown = await response.json();
      return body as ExportedSession;
    },
    /** Token ids of a turn's output. */
    turn: async (prompt: readonly number[], headers: Record<string, string>, more = {}) => {
      const body = { token_ids: prompt, sampling_params: { max_tokens: 50, logprobs: 0, ...more } };
      const answer = await fixture.json(GENERATE, body, { headers });
      const { choices } = Object(answer);
      expect([answer, choices?.length]).toEqual([answer, Number(Object(more).n ?? 1)]);
      return choices[0].token_ids as number[];
    },
  };
}

test("sessions: turns are one sequence, with a mask of what was drawn, its logprobs and weights", async () => {
  const { fixture, trajectory, turn } = bedOf();
  const named = { "X-Session-ID": "a/b c", "X-Foretoken-Group": "task" };
  const first = await turn([1, 2, 3], named);
  const prompt = [1, 2, 3, ...first, 7, 8];
  const second = await turn(prompt, named);
  const whole = await trajectory("/v1/sessions/a%2Fb%20c");
  expect(whole).toMatchObject({
    session: "a/b c",
    group: "task",
    run: 1,
    state: "open",
    is_complete: true,
    incomplete_because: [],
    turns: [{ segment: 0 }, { segment: 0, output_tokens: second.length, finish_reason: "stop" }],
  });
  const [segment] = whole.segments;
  expect(whole.segments).toHaveLength(1);
  expect(segment?.token_ids).toEqual([...prompt, ...second]);
  const mask = [0, 0, 0, ...first.map(() => 1), 0, 0, ...second.map(() => 1)];
  expect(segment?.loss_mask).toEqual(mask);
  expect(segment?.logprobs.map((logprob) => Number(logprob !== null))).toEqual(mask);
  expect(segment?.spans).toEqual([
    { turn: 0, from: 3, to: 3 + first.length, weight_epoch: 0, weight_version: "step-0" },
    {
      turn: 1,
      from: prompt.length,
      to: prompt.length + second.length,
      weight_epoch: 0,
      weight_version: "step-0",
    },
  ]);
  // The agent drops its first answer: another segment, whose common tokens are not trained on again.
  const edited = await turn([1, 2, 3, 9], named);
  const [, branch] = (await trajectory("/v1/sessions/a%2Fb%20c")).segments;
  expect(branch).toMatchObject({
    parent: { segment: 0, tokens: 3 },
    token_ids: [1, 2, 3, 9, ...edited],
    loss_mask: [0, 0, 0, 0, ...edited.map(() => 1)],
  });
  expect(fixture.failures).toEqual([]);
});

test("sessions: a key, a field and a header name one; the key brings the server's token, too", async () => {
  const { trajectory, turn, get, fixture } = bedOf({ apiToken: "secret" });
  const key = (text: string) => ({ authorization: `Bearer ${text}` });
  await turn([1], key("SESSION:a:1;GROUP:g;TOKEN:secret"));
  await turn([1], { "x-api-key": "SESSION:b;TOKEN:secret" });
  await turn([1], { ...key("secret"), "X-Session-ID": "c" });
  const read = { headers: key("secret") };
  for (const [name, group] of [
    ["a:1", "g"],
    ["b", null],
    ["c", null],
  ] as const) {
    expect(await trajectory(`/v1/sessions/${name}`, read)).toMatchObject({ session: name, group });
  }
  expect((await get("/v1/sessions", { headers: key("SESSION:a") })).status).toBe(401);
  const wrong = { headers: key("SESSION:a;TOKEN:other") };
  const body = { token_ids: [1], sampling_params: { max_tokens: 1 } };
  expect((await fixture.post(GENERATE, body, wrong)).status).toBe(401);
});

test("sessions: a key that is meant to name one, and does not, is refused, without its text", async () => {
  const { fixture } = bedOf();
  const body = { token_ids: [1], sampling_params: { max_tokens: 1 } };
  for (const key of ["SESSION:", "SESSION:a;GROUP:", "SESSION:a;KEY:hidden"]) {
    const answer = await fixture.post(GENERATE, body, { headers: { "x-api-key": key } });
    const { error } = Object(await answer.json());
    expect([key, answer.status, error.param]).toEqual([key, 400, "the API key"]);
    expect(error.message).not.toContain("hidden");
  }
});

test("sessions: those of a group or an iteration as NDJSON; a name of two groups asks which", async () => {
  const { fixture, trajectory, turn, get } = bedOf();
  for (const group of ["g", "h"]) {
    for (const name of ["a", "b"])
      await turn([1, 2], { "X-Session-ID": name, "X-Foretoken-Group": group });
  }
  const lines = async (query: string) => {
    const text = await fixture.until((await get(`/v1/sessions?format=ndjson&${query}`)).text());
    return text
      .trimEnd()
      .split("\n")
      .map((line): ExportedSession => JSON.parse(line));
  };
  const seen = await lines("group=h");
  expect(seen.map(({ session, group }) => [session, group])).toEqual([
    ["a", "h"],
    ["b", "h"],
  ]);
  expect(await lines("iteration=1")).toHaveLength(4);
  const clash = await get("/v1/sessions/a");
  expect(clash.status).toBe(409);
  expect(JSON.stringify(await clash.json())).toContain("name one with ?group=");
  expect(await trajectory("/v1/sessions/a?group=g")).toMatchObject({ group: "g" });
  expect((await get("/v1/sessions?format=xml")).status).toBe(400);
  const gone = await get("/v1/sessions/a?group=g", { method: "DELETE" });
  expect(gone.status).toBe(200);
  expect((await get("/v1/sessions/a?group=g")).status).toBe(404);
  expect(await trajectory("/v1/sessions/a")).toMatchObject({ group: "h" });
  await turn([1, 2], { "X-Session-ID": "a" });
  expect((await get("/v1/sessions/a")).status).toBe(409);
  expect(await trajectory("/v1/sessions/a?group=")).toMatchObject({ group: null });
});

test("sessions: why one is not whole: a turn that was cut off, until it is asked again; several responses; an end", async () => {
  const { fixture, trajectory, turn } = bedOf();
  const headers = { "X-Session-ID": "a" };
  const controller = new AbortController();
  const body = { token_ids: [1, 2], sampling_params: { max_tokens: 50 } };
  const cut = fixture.post(GENERATE, body, { headers, signal: controller.signal });
  await fixture.when(() => fixture.sidecar.rollout.unfinished === 1);
  expect(await trajectory("/v1/sessions/a")).toMatchObject({
    state: "running",
    incomplete_because: [expect.stringContaining("runs")],
  });
  controller.abort();
  await cut.catch(() => undefined);
  await fixture.when(() => {
    fixture.pass(31_000);
    return fixture.sidecar.rollout.unfinished === 0;
  });
  await fixture.step(3);
  const flawed = await trajectory("/v1/sessions/a");
  expect(flawed).toMatchObject({ is_complete: false, turns: [] });
  expect(flawed.incomplete_because).toEqual([expect.stringContaining("given up")]);
  await turn([1, 2], headers);
  expect(await trajectory("/v1/sessions/a")).toMatchObject({ is_complete: true });
  await turn([1, 2, 3], headers, { n: 2 });
  expect((await trajectory("/v1/sessions/a")).incomplete_because).toEqual([
    "a turn asked for 2 responses, and is not recorded",
  ]);
  expect(await fixture.json("/finish_session", { session_id: "a" })).toEqual({ ended: 1 });
  expect(await trajectory("/v1/sessions/a")).toMatchObject({ state: "ended", run: 1 });
  await turn([1, 2], headers);
  expect(await trajectory("/v1/sessions/a")).toMatchObject({ run: 2, is_complete: true });
  expect(await trajectory("/v1/sessions/a?run=1")).toMatchObject({ run: 1, is_complete: false });
});
