// What two connections bring together, frame by frame: the server that sends all again is rare, and its frames are here.

import { expect, test } from "bun:test";
import { Follower } from "./follower.ts";

const begun = (joined: number) => ({
  state: "subscribed",
  begun: { server: 5, requests: 1, joined },
  weight_epoch: 0,
});
const joined = { request: 0, group: "g", index: 0, prompt_tokens: 2, offset: 0, attempt: 5 };

test("frames that repeat what came before a cut bring what is new of them", () => {
  const follower = new Follower({ all: true }, true);
  const read = (frame: object) => [...follower.read(JSON.stringify(frame))];
  read(begun(1));
  read({ joined: [joined], tokens: [{ request: 0, offset: 0, token_ids: [7, 8] }] });
  expect(JSON.parse(follower.subscribe()).subscribe).toEqual({
    all: true,
    resumed: { server: 5, requests: 1, have: [[0, 2, 5]] },
  });
  expect(read(begun(1))).toEqual([]);
  const again = { joined: [joined], tokens: [{ request: 0, offset: 0, token_ids: [7, 8, 9] }] };
  expect(read(again)).toEqual([{ kind: "tokens", request: 0, offset: 2, tokens: [9] }]);
  expect(read(again)).toEqual([]);
});

test("a restart voids the tokens; a gap, an unknown response and what is no JSON break the protocol", () => {
  const follower = new Follower({ group: "g" }, false);
  const read = (frame: object) => [...follower.read(JSON.stringify(frame))];
  read(begun(0));
  read({ joined: [joined], tokens: [{ request: 0, offset: 0, token_ids: [7] }] });
  const restarted = { restarted: [{ request: 0, attempt: 6 }] };
  expect(read(restarted)).toEqual([{ kind: "restarted", request: 0 }]);
  const tokens = [{ request: 0, offset: 0, token_ids: [4] }];
  expect(read({ tokens })).toEqual([{ kind: "tokens", request: 0, offset: 0, tokens: [4] }]);
  for (const frame of [
    { tokens: [{ request: 0, offset: 3, token_ids: [1] }] },
    { tokens: [{ request: 9, offset: 0, token_ids: [1] }] },
    { finished: [{ request: 0, finish_reason: "stop", length: 2, weight_epoch: 0 }] },
  ]) {
    expect(() => read(frame)).toThrow(expect.objectContaining({ code: "protocol" }));
  }
  expect(() => [...follower.read("{")]).toThrow(expect.objectContaining({ code: "protocol" }));
});

test("the end of a group is told, however many responses came before", () => {
  const follower = new Follower({ all: true }, false);
  const read = (frame: object) => [...follower.read(JSON.stringify(frame))];
  read(begun(0));
  const frameOf = (ids: readonly number[]) => ({
    joined: ids.map((request) => ({ ...joined, request, group: `g${request}` })),
  });
  // One goes on all the time.
  read(frameOf([0]));
  const ends = { finish_reason: "stop", length: 0, weight_epoch: 0 };
  for (let first = 1; first < 270_000; first += 9_000) {
    const ids = Array.from({ length: 9_000 }, (_, i) => first + i);
    read({ ...frameOf(ids), finished: ids.map((request) => ({ request, ...ends })) });
    const told = read({ groups_finished: ids.map((id) => `g${id}`) });
    expect(told).toHaveLength(9_000);
  }
  const last = read({ finished: [{ request: 0, ...ends }], groups_finished: ["g0"] });
  expect(last.map(({ kind }) => kind)).toEqual(["finished", "group_finished"]);
});
