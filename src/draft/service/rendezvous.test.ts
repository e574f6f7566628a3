import { expect, test } from "bun:test";
import { groupId } from "../../base/ids.ts";
import { shardOf } from "./rendezvous.ts";

const NAMES = ["ws://a:1", "ws://b:1", "ws://c:1", "ws://d:1"];
const IDS = Array.from({ length: 4000 }, (_, i) => groupId(`group-${i}`));

test("shardOf: every server gets its share", () => {
  const counts = NAMES.map(() => 0);
  for (const id of IDS) counts[shardOf(id, NAMES)] = (counts[shardOf(id, NAMES)] ?? 0) + 1;
  // 1000 expected of each, with a standard deviation of 27.
  for (const count of counts) expect(Math.abs(count - 1000)).toBeLessThan(140);
});

test("shardOf: the order of the list decides nothing", () => {
  const reversed = NAMES.toReversed();
  for (const id of IDS) expect(reversed[shardOf(id, reversed)]).toBe(NAMES[shardOf(id, NAMES)]);
});

test("shardOf: a server less moves its own groups alone", () => {
  const fewer = NAMES.slice(0, 3);
  for (const id of IDS) {
    const before = NAMES[shardOf(id, NAMES)];
    if (before !== "ws://d:1") expect(fewer[shardOf(id, fewer)]).toBe(before);
  }
});

test("shardOf: refuses an empty list", () => {
  expect(() => shardOf(groupId("a"), [])).toThrow("a group needs a draft server");
});
