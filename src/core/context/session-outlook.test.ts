import { expect, test } from "bun:test";
import { samplingOf } from "../../../test/suite/request-spec.ts";
import { groupId } from "../base/ids.ts";
import { type Group, RequestBuffer } from "../request/buffer.ts";
import { drawKey } from "../request/request.ts";
import { SessionOutlook } from "./session-outlook.ts";

test("outlook: a session is expected to grow as far as the longest of its group, or as others on the mean", () => {
  const outlook = new SessionOutlook();
  const buffer = new RequestBuffer();
  const [long, short] = ["a", "b"].map((id) => buffer.open(groupId(id), new Int32Array(10)));
  const turnOf = (group: Group | undefined, turn: number, leadTokens: number) => {
    if (group === undefined) throw new Error("a group");
    const request = buffer.join(group, {
      sampling: samplingOf({ tokensMax: 8 }),
      draw: drawKey(1, "", 0),
      priority: 0,
      divisible: true,
      turn: { prompt: new Int32Array(10 + turn * 100), leadTokens },
    });
    request.turn = turn;
    return request;
  };
  expect(outlook.tokensLeft(turnOf(short, 0, 0))).toBe(64);
  for (let turn = 0; turn < 8; turn += 1) outlook.ended(turnOf(long, turn, turn === 0 ? 0 : 100));
  outlook.ended(turnOf(short, 0, 0));
  const left = (group: Group | undefined, turn: number) =>
    outlook.tokensLeft(turnOf(group, turn, 0));
  expect(left(long, 1)).toBe(600);
  // Two sessions with 700 tokens in all; the next turn is as far as anything is known of a session that has more.
  expect(left(short, 1)).toBe(250);
  expect(left(short, 7)).toBeLessThan(100);
  expect(outlook.leads(turnOf(short, 1, 0))).toBe(true);
  expect(outlook.leads(turnOf(long, 1, 0))).toBe(false);
  const single = buffer.open(groupId("c"), new Int32Array(10));
  buffer.join(single, {
    sampling: samplingOf({ tokensMax: 8 }),
    draw: drawKey(1, "", 0),
    priority: 0,
    divisible: true,
  });
  expect(outlook.tokens(single)).toBeNull();
});
