// The time left by what is known of the groups, and by the speed of what runs.

import { expect, test } from "bun:test";
import { groupId } from "../base/ids.ts";
import { type Group, RequestBuffer } from "../request/buffer.ts";
import { SAMPLING_DEFAULTS } from "../request/request.ts";
import { timeLeft } from "./time-left.ts";

const SPEED = { running: 2, tokensPerS: 20 };

/** Groups of two requests, the first of which runs and has `lengths[i]` tokens; the second waits, or runs as well. */
function groupsOf(lengths: readonly number[], second: "waiting" | "running") {
  const buffer = new RequestBuffer();
  const groups = lengths.map((length, i) => {
    const sampling = { temperature: 1, seed: 0, tokensMax: 500, stopTokenIds: [] };
    const group = buffer.add({
      groupId: groupId(`g${i}`),
      prompt: Int32Array.of(1),
      size: 2,
      sampling: { ...sampling, ...SAMPLING_DEFAULTS },
    });
    const [first, other] = group.requests;
    if (first === undefined || other === undefined) throw new Error("a group has two requests");
    for (const request of second === "running" ? [first, other] : [first]) {
      buffer.move(request, "moving");
      buffer.move(request, "running");
    }
    for (const { response } of second === "running" ? group.requests : [first]) {
      response.append(0, new Int32Array(length), new Float32Array(length));
    }
    return group;
  });
  return { buffer, groups };
}

test("timeLeft: the longest group at the speed of one response, where nothing waits", () => {
  const { buffer, groups } = groupsOf([40, 60], "running");
  const learned = (group: Group) => (group === groups[0] ? 140 : 100);
  // 100 tokens are left of the first group, at 10 tokens a second.
  expect(timeLeft(buffer.requests, learned, SPEED)).toEqual({ lowS: 10, highS: 10 });
});

test("timeLeft: what waits comes on top of the longest, at the speed of all together", () => {
  const { buffer } = groupsOf([40], "waiting");
  expect(timeLeft(buffer.requests, () => 140, SPEED)).toEqual({ lowS: 14, highS: 14 + 7 });
});

test("timeLeft: a group of which nothing is known is as long as the others, and no longer than it may be", () => {
  const { buffer, groups } = groupsOf([40, 0], "running");
  const learned = (tokens: number) => (group: Group) => (group === groups[0] ? tokens : null);
  expect(timeLeft(buffer.requests, learned(140), SPEED)?.lowS).toBe(14);
  expect(timeLeft(buffer.requests, learned(900), SPEED)?.lowS).toBe(50);
});

test("timeLeft: none before a group is known, and none while nothing runs", () => {
  const { buffer } = groupsOf([40], "running");
  expect(timeLeft(buffer.requests, () => null, SPEED)).toBeNull();
  expect(timeLeft(buffer.requests, () => 140, { running: 0, tokensPerS: 0 })).toBeNull();
  // It has come further than anybody expected: it ends any moment.
  expect(timeLeft(buffer.requests, () => 10, SPEED)?.highS).toBe(0.1);
});
