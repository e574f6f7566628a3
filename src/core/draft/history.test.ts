// A replica with a history: what it drafts from the past, when a past is there, and when it is not used.

import { expect, test } from "bun:test";
import { type GroupId, groupId } from "../base/ids.ts";
import { promptKey } from "../request/prompt-key.ts";
import { History } from "./history.ts";
import { Replica } from "./replica.ts";

const A = groupId("a");
const B = groupId("b");
const ids = (...tokens: number[]) => Int32Array.from(tokens);
const PROMPT = ids(1, 2, 3);

/** Tokens drafted for a response, and their probabilities. */
function draft(replica: Replica, id: GroupId, sampleIndex: number) {
  const query = { groupId: id, sampleIndex, tokensMax: 8, probabilityMin: 0.01, tree: false };
  const { start, tokens, probabilities } = replica.propose([query]);
  const end = start[1] ?? 0;
  return {
    tokens: [...tokens.subarray(0, end)],
    probabilities: [...probabilities.subarray(0, end)],
  };
}

function withPast(history: History, ...responses: Int32Array[]): Replica {
  for (const tokens of responses) history.add(promptKey(PROMPT), tokens);
  history.advance();
  return new Replica({ history });
}

test("history: the first response of a prompt that was seen drafts from its past", () => {
  const replica = withPast(new History(), ids(10, 11, 12), ids(10, 11, 12), ids(10, 11, 12));
  replica.register(A, PROMPT);
  expect(draft(replica, A, 0).tokens).toEqual([10, 11, 12]);
  replica.update(A, 0, 0, ids(50, 11));
  expect(draft(replica, A, 0).tokens[0]).toBe(12);
});

test("history: a dropped group's responses are the past of the next epoch, not of this one", () => {
  const replica = new Replica({ history: new History() });
  replica.register(A, PROMPT);
  for (const sample of [0, 1, 2]) replica.update(A, sample, 0, ids(10, 11, 12));
  replica.update(A, 0, 2, ids(12, 13));
  replica.drop(A);
  replica.register(B, PROMPT);
  expect(draft(replica, B, 0).tokens).toEqual([]);
  replica.clear();
  replica.register(B, PROMPT);
  expect(draft(replica, B, 0).tokens).toEqual([10, 11, 12, 13]);
});

test("history: a new epoch forgets live groups and keeps their responses as the past", () => {
  const history = new History();
  const replica = new Replica({ history });
  replica.register(A, PROMPT);
  for (const sample of [0, 1, 2]) replica.update(A, sample, 0, ids(10, 11, 12));
  replica.clear();
  expect(replica.has(A)).toBe(false);
  expect(history.stats()).toMatchObject({ prompts: 1, responses: 3, recordingBytes: 0 });
  replica.register(A, PROMPT);
  expect(draft(replica, A, 0).tokens).toEqual([10, 11, 12]);
});

test("history: live responses outvote the past as they come in", () => {
  const replica = withPast(new History(), ids(10, 11, 12), ids(10, 11, 12));
  replica.register(A, PROMPT);
  expect(draft(replica, A, 9).tokens[0]).toBe(10);
  for (const sample of [0, 1, 2]) replica.update(A, sample, 0, ids(20, 21, 22));
  expect(draft(replica, A, 9).tokens).toEqual([20, 21, 22]);
});

test("history: a past that would take more than half of the memory is left out", () => {
  const long = Int32Array.from({ length: 20_000 }, (_, i) => i);
  const history = new History();
  history.add(promptKey(PROMPT), long);
  history.advance();
  const replica = new Replica({ history, limitBytes: 2 << 20 });
  replica.register(A, PROMPT);
  expect(draft(replica, A, 0).tokens).toEqual([]);
  for (const sample of [0, 1, 2]) replica.update(A, sample, 0, ids(20, 21, 22));
  expect(draft(replica, A, 9).tokens).toEqual([20, 21, 22]);
});

test("history: no response is longer than what crosses into the core at once", () => {
  const long = Int32Array.from({ length: 100_000 }, (_, i) => i);
  const history = new History();
  const replica = new Replica({ history });
  replica.register(A, PROMPT);
  replica.update(A, 0, 0, long.subarray(0, 40_000));
  replica.update(A, 0, 40_000, long.subarray(40_000));
  history.add(promptKey(ids(7)), long);
  replica.clear();
  const lengths = [...history.past(PROMPT), ...history.past(ids(7))].map(({ length }) => length);
  expect(lengths).toEqual([40_000, 60_000]);
  replica.register(A, ids(7));
  replica.update(A, 0, 0, ids(100_001, 59_990));
  expect(draft(replica, A, 0).tokens[0]).toBe(59_991);
});
