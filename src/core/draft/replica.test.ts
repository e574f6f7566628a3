// The replica's contract: offsets, gaps, limits, epochs, bad input. What it drafts is checked against
// the twin in src/core/wasm/suffix-index.property.test.ts.

import { expect, test } from "bun:test";
import { groupId } from "../base/ids.ts";
import type { CoreOptions } from "../wasm/load.ts";
import type { DraftQuery } from "./drafter.ts";
import { Replica } from "./replica.ts";

const A = groupId("a");
const B = groupId("b");
const ids = (...tokens: number[]) => Int32Array.from(tokens);
const count = (from: number, to: number) =>
  Int32Array.from({ length: to - from }, (_, i) => from + i);

function query(sampleIndex: number, more: Partial<DraftQuery> = {}): DraftQuery {
  return { groupId: A, sampleIndex, tokensMax: 8, probabilityMin: 0.01, tree: false, ...more };
}

/** Tokens drafted for each query. */
function drafted(replica: Replica, ...queries: DraftQuery[]): number[][] {
  const { start, tokens } = replica.propose(queries);
  return queries.map((_, i) => [...tokens.subarray(start[i], start[i + 1])]);
}

function ready(options: CoreOptions = {}): Replica {
  const replica = new Replica(options);
  replica.register(A, ids(1, 2, 3));
  return replica;
}

test("propose: queries of many requests keep their order and their own ranges", () => {
  const replica = ready();
  replica.register(B, ids());
  for (const sample of [0, 1, 2]) {
    replica.update(A, sample, 0, ids(10, 11, 12, 13));
    replica.update(B, sample, 0, ids(10, 11, 30, 31));
  }
  replica.update(A, 3, 0, ids(10, 11));
  replica.update(B, 3, 0, ids(10, 11));
  const queries = Array.from({ length: 300 }, (_, i) => query(3, { groupId: i % 2 === 0 ? A : B }));
  const wanted = queries.map(({ groupId: id }) => (id === A ? [12, 13] : [30, 31]));
  expect(drafted(replica, ...queries)).toEqual(wanted);
});

test("update: repeats and overlaps change nothing", () => {
  const once = ready();
  const twice = ready();
  once.update(A, 0, 0, count(50, 80));
  twice.update(A, 0, 0, count(50, 60));
  expect(twice.update(A, 0, 0, count(50, 60))).toEqual({ kind: "ok" });
  expect(twice.update(A, 0, 4, count(54, 80))).toEqual({ kind: "ok" });
  expect(twice.update(A, 0, 2, count(52, 55))).toEqual({ kind: "ok" });
  for (const replica of [once, twice]) replica.update(A, 1, 0, count(50, 53));
  const queries = [query(1, { tree: true, tokensMax: 32 })];
  const { start, tokens, probabilities } = once.propose(queries);
  const other = twice.propose(queries);
  expect(other.start[1]).toBe(start[1] ?? -1);
  expect(other.tokens).toEqual(tokens);
  expect(other.probabilities).toEqual(probabilities);
});

test("update: a gap returns the stored length", () => {
  const replica = ready();
  replica.update(A, 2, 0, ids(5, 6));
  expect(replica.update(A, 2, 3, ids(8))).toEqual({ kind: "gap", have: 2 });
  expect(replica.update(A, 0, 1, ids(8))).toEqual({ kind: "gap", have: 0 });
  expect(replica.update(A, 2, 2, ids(7, 8))).toEqual({ kind: "ok" });
});

test("update: a group that is not registered is ignored", () => {
  const replica = ready();
  expect(replica.update(B, 0, 5, ids(1))).toEqual({ kind: "ok" });
  expect(replica.has(B)).toBe(false);
});

test("update: more tokens than the input area holds arrive whole", () => {
  const replica = ready();
  const long = Int32Array.from({ length: 200_000 }, (_, i) => (i * i) % 65_521);
  replica.update(A, 0, 0, long);
  replica.update(A, 1, 0, long.subarray(150_000, 150_020));
  expect(drafted(replica, query(1))).toEqual([[...long.subarray(150_020, 150_028)]]);
});

test("drop: the group is gone, its room is free, and it can come back", () => {
  const replica = ready();
  const empty = replica.stats().usedBytes;
  for (let round = 0; round < 3; round += 1) {
    replica.update(A, 0, 0, count(0, 5000));
    replica.drop(A);
    expect(replica.has(A)).toBe(false);
    expect(drafted(replica, query(0))).toEqual([[]]);
    replica.register(A, ids(1, 2, 3));
    expect(replica.stats().usedBytes).toBe(empty);
  }
});

test("clear: a new epoch knows nothing of the old one", () => {
  const replica = ready();
  replica.register(B, ids(4));
  replica.update(A, 0, 0, ids(10, 11, 12));
  replica.clear();
  expect([replica.has(A), replica.has(B), replica.stats().groups]).toEqual([false, false, 0]);
  replica.register(A, ids(1, 2, 3));
  replica.update(A, 1, 0, ids(10));
  expect(drafted(replica, query(1))).toEqual([[]]);
});

test("full: a group beyond the limit drafts nothing and frees its room for others", () => {
  const replica = ready({ limitBytes: 1 << 20 });
  let result = replica.update(A, 0, 0, ids(7));
  for (let i = 0; i < 100 && result.kind === "ok"; i += 1) {
    result = replica.update(A, 0, 1 + i * 1000, count(i * 1000, (i + 1) * 1000));
    replica.propose([]);
  }
  expect(result).toEqual({ kind: "full" });
  expect(replica.stats().fullGroups).toBe(1);
  expect(replica.has(A)).toBe(true);
  expect(drafted(replica, query(0))).toEqual([[]]);
  replica.register(B, ids(1));
  for (const sample of [0, 1, 2]) expect(replica.update(B, sample, 0, ids(4, 5)).kind).toBe("ok");
  replica.update(B, 3, 0, ids(4));
  expect(drafted(replica, query(3, { groupId: B }))).toEqual([[5]]);
  replica.drop(A);
  expect(replica.has(A)).toBe(false);
});

test("full: a response beyond the 4,096 of a group is not taken; those before it are drafted for as ever", () => {
  const replica = ready();
  const text = count(10, 30);
  expect(replica.update(A, 4095, 0, text)).toEqual({ kind: "ok" });
  expect(replica.update(A, 4096, 0, text)).toEqual({ kind: "full" });
  expect(replica.update(A, 1_000_000, 7, text)).toEqual({ kind: "full" });
  expect(replica.update(A, 0, 0, text.subarray(0, 4))).toEqual({ kind: "ok" });
  const [first, beyond, last] = drafted(replica, query(0), query(4096), query(4095));
  expect(first?.slice(0, 3)).toEqual([14, 15, 16]);
  expect(beyond).toEqual([]);
  expect(last).toBeDefined();
  expect(replica.stats()).toMatchObject({ groups: 1, fullGroups: 0 });
});
