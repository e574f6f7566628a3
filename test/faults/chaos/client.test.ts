// What a chaos run finds: each kind of damage is counted as what it is.

import { afterEach, expect, test } from "bun:test";
import { type Collected, collect, difference, judge } from "./client.ts";
import { keyOf, mixedWeights, type ResponseLine, weightsOf } from "./response-line.ts";

const line = (group: string, index: number, fields: Partial<ResponseLine> = {}): ResponseLine => ({
  ...{ group, index, prompt_token_ids: [1], token_ids: [5, 6], logprobs: [-1, -2] },
  ...{ finish_reason: "stop", chunks: [{ weight_version: "a", tokens: 2 }], ...fields },
});
const RIGHT = [line("g", 0), line("g", 1), line("h", 0)];
const byKey = (lines: readonly ResponseLine[]) => new Map(lines.map((one) => [keyOf(one), one]));
const wanted = byKey(RIGHT);

function verdictOn(lines: readonly ResponseLine[], fields: Partial<Collected> = {}) {
  const collected = { responses: byKey(lines), twice: 0, changed: [], end: "finished", ...fields };
  const { lost, twice, wrong } = judge(collected, wanted.keys(), (one) => {
    const expected = weightsOf(one) === null ? undefined : wanted.get(keyOf(one));
    return expected === undefined ? mixedWeights(one) : difference(expected, one);
  });
  return [lost, twice, wrong];
}

test("judge: what is right, missing, repeated, other tokens, logprobs, ends, and mixed weights", () => {
  expect(verdictOn(RIGHT)).toEqual([0, 0, 0]);
  expect(verdictOn(RIGHT.slice(1))).toEqual([1, 0, 0]);
  expect(verdictOn(RIGHT, { twice: 1 })).toEqual([0, 1, 0]);
  expect(verdictOn(RIGHT, { changed: ["g/0"] })).toEqual([0, 0, 1]);
  const others: Partial<ResponseLine>[] = [
    { token_ids: [5, 7] },
    { token_ids: [5] },
    { token_ids: [5, 6, 7] },
    { logprobs: [-1, -2.0000002] },
    { finish_reason: "length" },
    {
      chunks: [
        { weight_version: "a", tokens: 1 },
        { weight_version: "b", tokens: 1 },
      ],
    },
  ];
  for (const fields of others) {
    expect(verdictOn([line("g", 0, fields), ...RIGHT.slice(1)])).toEqual([0, 0, 1]);
  }
  expect(verdictOn([...RIGHT, line("x", 0)])).toEqual([0, 0, 1]);
});

const servers: ReturnType<typeof Bun.serve>[] = [];
afterEach(async () => {
  await Promise.all(servers.splice(0).map((server) => server.stop(true)));
});

/** Answers one after the other, then with 503. */
function serving(answers: readonly { text: string; status?: number }[]): string {
  let next = 0;
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    fetch: () => {
      next += 1;
      const { text, status = 200 } = answers[next - 1] ?? { text: "", status: 503 };
      return new Response(text, { status });
    },
  });
  servers.push(server);
  return `http://127.0.0.1:${server.port}`;
}

const body = (lines: readonly object[]) => ({
  text: lines.map((one) => `${JSON.stringify(one)}\n`).join(""),
});

test("collect: asks again until the summary, and sees what is repeated or differs", async () => {
  const other = line("g", 0, { token_ids: [9, 9] });
  const url = serving([
    { text: "not yet", status: 503 },
    body([line("g", 0)]),
    body([other, line("h", 0), line("h", 0), { rollout: "r", state: "finished" }]),
  ]);
  const all = await collect(url, "{}", AbortSignal.timeout(10_000));
  expect([all.twice, all.changed, all.end]).toEqual([1, ["g/0"], "finished"]);
  expect([...all.responses.keys()]).toEqual(["g/0", "h/0"]);
});

test("collect: a refusal and a deadline end it by name", async () => {
  const refused = serving([{ text: "no", status: 409 }]);
  expect((await collect(refused, "{}", AbortSignal.timeout(10_000))).end).toContain("409");
  const never = serving([]);
  expect((await collect(never, "{}", AbortSignal.timeout(200))).end).toContain("TimeoutError");
});
