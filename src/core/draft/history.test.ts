// A replica whose groups have a past: what it drafts from it, and when it is not used.

import { expect, test } from "bun:test";
import { type GroupId, groupId } from "../base/ids.ts";
import { promptKey } from "../request/prompt-key.ts";
import { History } from "./history.ts";
import { Replica } from "./replica.ts";

const A = groupId("a");
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

/** A replica with group A, whose prompt has this past. */
function withPast(...past: Int32Array[]): Replica {
  const replica = new Replica();
  replica.register(A, PROMPT, past);
  return replica;
}

test("history: the first response of a prompt that was seen drafts from its past", () => {
  const replica = withPast(ids(10, 11, 12), ids(10, 11, 12), ids(10, 11, 12));
  expect(draft(replica, A, 0).tokens).toEqual([10, 11, 12]);
  replica.update(A, 0, 0, ids(50, 11));
  expect(draft(replica, A, 0).tokens[0]).toBe(12);
});

test("history: a past that would take more than half of the memory is left out", () => {
  const long = Int32Array.from({ length: 20_000 }, (_, i) => i);
  const replica = new Replica({ limitBytes: 2 << 20 });
  replica.register(A, PROMPT, [long]);
  expect(draft(replica, A, 0).tokens).toEqual([]);
  for (const sample of [0, 1, 2]) replica.update(A, sample, 0, ids(20, 21, 22));
  expect(draft(replica, A, 9).tokens).toEqual([20, 21, 22]);
});

test("history: no response is longer than what crosses into the core at once", () => {
  const long = Int32Array.from({ length: 100_000 }, (_, i) => i);
  const history = new History();
  history.add(promptKey(PROMPT), long);
  history.advance();
  const past = history.past(promptKey(PROMPT));
  expect(past.map(({ length }) => length)).toEqual([60_000]);
  const replica = withPast(...past);
  replica.update(A, 0, 0, ids(100_001, 59_990));
  expect(draft(replica, A, 0).tokens[0]).toBe(59_991);
});
