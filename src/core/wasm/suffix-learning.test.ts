// What an instance that learns drafts beyond the counts of a group: from the text of its other requests,
// and from where the text that a response has parted from would have gone on.

import { expect, test } from "bun:test";
import { unexpectedFull } from "../../../test/reference/suffix-twin.ts";
import { SuffixIndex } from "./suffix-index.ts";

const ASK = { tokensMax: 8, probabilityMin: 0.01, tree: false };

const from = (first: number, count: number): number[] =>
  Array.from({ length: count }, (_, i) => first + i);

function draft(index: SuffixIndex, handle: number, sequence: number, tree = false): number[] {
  index.begin(1);
  index.draft(handle, sequence, { ...ASK, tree });
  const { start, tokens } = index.step();
  return [...tokens.subarray(0, start[1])];
}

/** A response that is drafted for at every token. */
function write(index: SuffixIndex, handle: number, sequence: number, tokens: number[]): void {
  for (const token of tokens) {
    draft(index, handle, sequence);
    index.append(handle, sequence, Int32Array.of(token), 0);
  }
  index.flush();
}

/** The draft of a response that has written a few tokens of a phrase known from another group. */
function draftOfPhrase(learning: boolean, tree: boolean): number[] {
  const index = new SuffixIndex({ learning }, unexpectedFull);
  const phrase = from(40, 12);
  const first = index.create(Int32Array.of(1)) ?? unexpectedFull();
  for (let k = 0; k < 6; k += 1) write(index, first, k, [...from(200 + 20 * k, 5), ...phrase]);
  const second = index.create(Int32Array.of(2)) ?? unexpectedFull();
  write(index, second, 0, phrase.slice(0, 4));
  return draft(index, second, 0, tree);
}

test("learning: a phrase of another group's responses is drafted", () => {
  expect(draftOfPhrase(true, false).slice(0, 2)).toEqual([44, 45]);
  expect(draftOfPhrase(true, true)).toContain(45);
});

test("learning: the cross-request n-gram cache takes no room where it would crowd out the groups", () => {
  const index = new SuffixIndex({ limitBytes: 16 << 20 }, unexpectedFull);
  const handle = index.create(Int32Array.of(1)) ?? unexpectedFull();
  write(index, handle, 0, [...from(5, 20), ...from(5, 20)]);
  expect(index.core.used_bytes()).toBeLessThan(8 << 20);
  index.append(handle, 0, Int32Array.of(5, 6, 7), 0);
  expect(draft(index, handle, 0).length).toBeGreaterThan(0);
});

/** The draft of a response that follows its sibling but for one token. */
function draftAfterParting(learning: boolean, tree: boolean): number[] {
  const index = new SuffixIndex({ learning }, unexpectedFull);
  const handle = index.create(Int32Array.of(1)) ?? unexpectedFull();
  index.append(handle, 0, Int32Array.from(from(10, 40)), 0);
  write(index, handle, 1, [...from(10, 12), 99]);
  return draft(index, handle, 1, tree);
}

test("learning: after a substituted token the draft continues where the sibling does", () => {
  expect(draftAfterParting(true, false)[0]).toBe(23);
  expect(draftAfterParting(true, true)).toContain(23);
});

test("learning: a response parts again and again, and the index stays sound", () => {
  const index = new SuffixIndex({ contextTokens: 4 }, unexpectedFull);
  const handle = index.create(Int32Array.of(1, 2)) ?? unexpectedFull();
  for (let k = 0; k < 5; k += 1) {
    const tokens = from(0, 120).map((i) => ((i * 7 + (i % 9) * k) % 11) + 3);
    for (let at = 0; at < tokens.length; at += 3) {
      const drafted = draft(index, handle, k, at % 2 === 0);
      expect(drafted.every((token) => token >= 1 && token < 14)).toBe(true);
      index.append(handle, k, Int32Array.from(tokens.slice(at, at + 3)), 0);
    }
  }
  index.flush();
  expect(index.core.group_check(handle)).toBe(0);
});

/** The draft of a response that itself goes on otherwise after a token than all its siblings. */
function draftOfOwnWay(learning: boolean, tree: boolean): number[] {
  const index = new SuffixIndex({ learning }, unexpectedFull);
  const handle = index.create(Int32Array.of(1)) ?? unexpectedFull();
  // Nobody writes anything twice before the 5, so that one token is all that is known.
  for (let k = 1; k < 9; k += 1) {
    const tokens = from(0, 4).flatMap((i) => [1000 + 50 * k + 10 * i, 5, 6]);
    index.append(handle, k, Int32Array.from(tokens), 0);
  }
  write(index, handle, 0, [...from(0, 4).flatMap((i) => [3000 + 10 * i, 5, 7]), 4000, 5]);
  return draft(index, handle, 0, tree);
}

test("learning: what a response itself wrote last is drafted before what its siblings write", () => {
  expect(draftOfOwnWay(true, false)[0]).toBe(7);
  expect(draftOfOwnWay(true, true)[0]).toBe(7);
  expect(draftOfOwnWay(false, false)[0]).toBe(6);
  expect(draftOfOwnWay(false, true)[0]).toBe(6);
});

/** The draft of a group's first response after another group, which had the same handle if it was dropped. */
function draftAfterGroup(isDropped: boolean): number[] {
  const index = new SuffixIndex({}, unexpectedFull);
  const first = index.create(Int32Array.of(1)) ?? unexpectedFull();
  write(index, first, 0, [...from(20, 6), 5, 7, ...from(30, 6), 5, 7, ...from(40, 6), 5, 7]);
  if (isDropped) index.drop(first);
  const second = index.create(Int32Array.of(1)) ?? unexpectedFull();
  expect(second === first).toBe(isDropped);
  write(index, second, 0, [...from(60, 6), 5]);
  index.begin(1);
  index.draft(second, 0, { ...ASK, tree: true });
  const { start, tokens, probabilities } = index.step();
  const count = start[1] ?? 0;
  expect(count).toBeGreaterThan(0);
  return [...tokens.subarray(0, count), ...probabilities.subarray(0, count)];
}

test("learning: a group does not take what another with its handle wrote for its own", () => {
  expect(draftAfterGroup(true)).toEqual(draftAfterGroup(false));
});

/** The probability of 9 after 7 in a new group, after many responses that had 9 after `before` and neither after 7. */
function probabilityAfter(before: number): number {
  const index = new SuffixIndex({}, unexpectedFull);
  const phrase = [...from(40, 12), 7];
  for (let k = 0; k < 40; k += 1) {
    const handle = index.create(Int32Array.of(1)) ?? unexpectedFull();
    index.append(handle, 0, Int32Array.of(...phrase, 8), 0);
    write(index, handle, 1, [300, before, 9, ...phrase, 33]);
    index.drop(handle);
  }
  const handle = index.create(Int32Array.of(2)) ?? unexpectedFull();
  index.append(handle, 0, Int32Array.of(...from(400, 12), 7, 9), 0);
  index.append(handle, 1, Int32Array.of(...from(400, 12), 7), 0);
  index.begin(1);
  index.draft(handle, 1, { ...ASK, tokensMax: 1 });
  const { tokens, probabilities } = index.step();
  expect(tokens[0]).toBe(9);
  return probabilities[0] ?? 0;
}

test("learning: a second best candidate that is wrong again and again loses its probability", () => {
  expect(probabilityAfter(7)).toBeLessThan(probabilityAfter(6));
});
