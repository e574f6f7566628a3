// What a chaos run finds: each kind of damage is counted as what it is.

import { expect, test } from "bun:test";
import { type Collected, differenceFrom, judge } from "./client.ts";
import { keyOf, type ResponseLine } from "./response-line.ts";

const line = (group: string, index: number, fields: Partial<ResponseLine> = {}): ResponseLine => ({
  ...{ group, index, prompt_token_ids: [1], token_ids: [5, 6], logprobs: [-1, -2] },
  ...{ finish_reason: "stop", chunks: [{ weight_version: "a", tokens: 2 }], ...fields },
});
const RIGHT = [line("g", 0), line("g", 1), line("h", 0)];
const byKey = (lines: readonly ResponseLine[]) => new Map(lines.map((one) => [keyOf(one), one]));
const wanted = byKey(RIGHT);

function verdictOn(lines: readonly ResponseLine[], fields: Partial<Collected> = {}) {
  const collected = { responses: byKey(lines), twice: 0, changed: [], end: "finished", ...fields };
  const { lost, twice, wrong } = judge(
    collected,
    wanted.keys(),
    differenceFrom(new Map([["a", wanted]])),
  );
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
