// The draft client's own bounds and bad input; what it does together with servers is in
// test/suite/draft-service-suite.ts and client.property.test.ts.

import { expect, test } from "bun:test";
import {
  draftsOf,
  expectedDrafts,
  newClient,
  tokensOf,
} from "../../../test/suite/draft-service-suite.ts";
import { ManualClock } from "../../base/clock.ts";
import { groupId, weightEpoch } from "../../base/ids.ts";
import type { DraftClientLimits, DraftServerLimits } from "./limits.ts";
import type { Dial, LinkEvents } from "./link.ts";
import { localDial } from "./local-link.ts";
import type { ClientMessage } from "./message.ts";
import { DraftServer } from "./server.ts";

const A = groupId("a");
const B = groupId("b");
const PROMPT = Int32Array.of(1, 2, 3);
const TTL = { prompt: PROMPT, ttlMs: 60_000 };

/** Takes everything, says nothing. */
function silent(sent: ClientMessage[], events: LinkEvents[] = []): Dial {
  return (told) => {
    events.push(told);
    told.opened();
    return {
      send: (message) => {
        sent.push(message);
        return "sent";
      },
      close: () => {},
    };
  };
}

function withServer(
  options: {
    limits?: Partial<DraftClientLimits>;
  } & Partial<DraftServerLimits> = {},
) {
  const clock = new ManualClock(100);
  const { limits = {}, ...serverLimits } = options;
  const server = new DraftServer({ clock, instanceId: 1, limits: serverLimits });
  const { client, replica } = newClient(clock, { s: localDial(server) }, { limits });
  const run = (ms: number) => {
    for (let i = 0; i < ms; i += 1) {
      clock.advance(1);
      client.poll(clock.nowMs());
    }
  };
  const shard = () => client.stats().servers[0];
  return { clock, server, client, replica, run, shard };
}

test("registerGroup: names what is wrong", () => {
  const { client } = withServer();
  expect(() => client.registerGroup(A, { ...TTL, ttlMs: 0 })).toThrow("ttlMs is 0");
  expect(() => client.registerGroup(A, { ...TTL, ttlMs: Number.NaN })).toThrow("ttlMs is NaN");
  expect(() => client.registerGroup(groupId(""), TTL)).toThrow("groupId is empty");
  expect(() => client.registerGroup(groupId("x".repeat(90)), TTL)).toThrow("more than 256 bytes");
  const prompt = Int32Array.of(1, -2);
  expect(() => client.registerGroup(A, { ...TTL, prompt })).toThrow("tokens[1] is -2");
  expect(client.stats().groups).toBe(0);
});

test("append: names what is wrong, and the next good one is taken", () => {
  const { client } = withServer();
  client.registerGroup(A, TTL);
  const append = (delta: Partial<{ sampleIndex: number; offset: number; tokens: Int32Array }>) =>
    client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 5), ...delta });
  expect(() => append({ sampleIndex: -1 })).toThrow("sampleIndex is -1");
  expect(() => append({ sampleIndex: 4096 })).toThrow("sampleIndex is 4096");
  expect(() => append({ offset: 1.5 })).toThrow("offset is 1.5");
  expect(() => append({ tokens: Int32Array.of(-1) })).toThrow("tokens[0] is -1");
  expect(append({})).toEqual({ kind: "ok" });
  expect(draftsOf(client, A, 1)).toEqual(expectedDrafts(A, [tokensOf(0, 5)]));
});

test("append: beyond the window is a gap that says what is there", () => {
  const { client } = withServer({ limits: { windowTokens: 10 } });
  client.registerGroup(A, TTL);
  client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 5) });
  const far = { sampleIndex: 0, offset: 20, tokens: tokensOf(0, 5) };
  expect(client.append(A, far)).toEqual({ kind: "gap", have: 5 });
  expect(client.append(B, far)).toEqual({ kind: "ok" });
});

test("poll: a group that is not used for its lifetime goes, one that is used stays", () => {
  const { client, run } = withServer();
  client.registerGroup(A, { prompt: PROMPT, ttlMs: 1500 });
  client.registerGroup(B, { prompt: PROMPT, ttlMs: 1500 });
  for (let i = 0; i < 4; i += 1) {
    run(1000);
    draftsOf(client, B, 1);
  }
  expect([client.has(A), client.has(B)]).toEqual([false, true]);
  expect(client.stats()).toMatchObject({ groups: 1, groupsDropped: 1 });
});

test("registerGroup: one group too many drops the one used longest ago", () => {
  const { client, run, replica } = withServer({ limits: { groupsMax: 2 } });
  client.registerGroup(A, TTL);
  run(1);
  client.registerGroup(B, TTL);
  run(1);
  client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 5) });
  const c = groupId("c");
  client.registerGroup(c, TTL);
  expect([A, B, c].map((id) => client.has(id))).toEqual([true, false, true]);
  expect([A, B, c].map((id) => replica.has(id))).toEqual([true, false, true]);
});

test("append: a log that outgrows all room is dropped, and the rest goes on", () => {
  const { client, run } = withServer({ limits: { bytesMax: 8192 } });
  client.registerGroup(A, TTL);
  expect(client.append(A, { sampleIndex: 0, offset: 0, tokens: new Int32Array(4000) }).kind).toBe(
    "full",
  );
  expect(client.stats()).toMatchObject({ groups: 0, logBytes: 0 });
  client.registerGroup(B, TTL);
  expect(client.append(B, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 9) }).kind).toBe("ok");
  run(3);
  expect(client.stats().servers[0]?.tokensSent).toBe(9);
});

test("releaseGroup: nothing is sent for it any more", () => {
  const { client, server, run, replica } = withServer();
  client.registerGroup(A, TTL);
  run(5);
  client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 9) });
  client.releaseGroup(A);
  client.releaseGroup(A);
  const { fetches } = server.stats();
  run(100);
  expect(server.stats()).toMatchObject({ fetches, tokensTaken: 0 });
  expect([client.has(A), replica.has(A)]).toEqual([false, false]);
});

test("poll: a response that its server has no room for is sent again after a while, not at once", () => {
  const { client, server, run } = withServer({ groupBytesMax: 4096, limits: { refusedMs: 200 } });
  client.registerGroup(A, TTL);
  client.append(A, { sampleIndex: 0, offset: 0, tokens: new Int32Array(2000) });
  run(50);
  client.append(A, { sampleIndex: 0, offset: 2000, tokens: new Int32Array(10) });
  run(100);
  expect(server.stats()).toMatchObject({ full: 1, tokensTaken: 0 });
  run(200);
  expect(server.stats()).toMatchObject({ full: 2, tokensTaken: 0 });
});

test("poll: a prompt larger than a frame is refused here, and the group drafts alone", () => {
  const { client, server, run, shard } = withServer({ frameBytesMax: 1024 });
  const prompt = new Int32Array(1000);
  client.registerGroup(A, { prompt, ttlMs: 60_000 });
  client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 40) });
  run(20);
  expect(shard()?.groupsRefused).toBe(1);
  expect(server.stats().registered).toBe(0);
  expect(draftsOf(client, A, 1)).toEqual(expectedDrafts(A, [tokensOf(0, 40)], prompt));
});

test("poll: a group that was dropped and made anew by others is mended", () => {
  const { client, server, run, shard } = withServer({ groupsMax: 1 });
  const epoch = weightEpoch(0);
  const register = { kind: "register_group", epoch, ttlMs: 9e5, prompt: PROMPT } as const;
  const update = (sampleIndex: number, tokens: Int32Array) =>
    server.update({
      kind: "update",
      epoch,
      groups: [{ groupId: A, deltas: [{ sampleIndex, offset: 0, tokens }] }],
    });
  client.registerGroup(A, TTL);
  for (const offset of [0, 40]) {
    client.append(A, { sampleIndex: 0, offset, tokens: tokensOf(0, 40) });
    run(5);
  }
  update(2, tokensOf(0, 5));
  run(5);
  expect([client.versionOf(A), client.versionOf(B)]).toEqual([3, null]);
  server.register({ ...register, groupId: B });
  server.register({ ...register, groupId: A });
  update(1, tokensOf(1, 10));
  run(1);
  expect(client.versionOf(A)).toBe(1);
  run(20);
  expect(shard()).toMatchObject({ groupsLost: 0 });
  expect(server.stats()).toMatchObject({ groups: 1, tokensTaken: 80 + 5 + 10 + 80 });
  // What others had made and nobody else sends comes from here after a while.
  run(1100);
  expect(server.stats().tokensTaken).toBe(80 + 5 + 10 + 80 + 5);
});

test("poll: a server that does not answer is dialled again, later each time", () => {
  const [sent, clock] = [[] as ClientMessage[], new ManualClock(0)];
  const limits = { replyMsMax: 50, retryMsMin: 100, retryMsMax: 1000 };
  const { client } = newClient(clock, { s: silent(sent) }, { limits });
  client.registerGroup(A, TTL);
  const dials: number[] = [];
  for (let count = 0; clock.nowMs() < 8000; clock.advance(1)) {
    client.poll(clock.nowMs());
    const now = client.stats().servers[0]?.dials ?? 0;
    if (now > count) dials.push(clock.nowMs());
    count = now;
  }
  const pauses = dials.slice(1).map((at, i) => at - (dials[i] ?? 0) - 51);
  expect(pauses.length).toBeGreaterThan(7);
  // Between half and all of 100, 200, 400, 800, 1000, 1000, ... ms.
  for (const [i, pause] of pauses.entries()) {
    const bound = Math.min(100 * 2 ** i, 1000);
    expect(pause).toBeGreaterThanOrEqual(bound / 2);
    expect(pause).toBeLessThanOrEqual(bound + 1);
  }
  expect(sent.every((message) => message.kind === "hello")).toBe(true);
  expect(client.stats()).toMatchObject({ groupsDegraded: 1 });
});

test("poll: an answer that was not asked for ends the connection", () => {
  const [events, clock] = [[] as LinkEvents[], new ManualClock(0)];
  const { client } = newClient(clock, { s: silent([], events) });
  client.poll(0);
  events[0]?.received({ kind: "updated", epoch: weightEpoch(0), status: "ok", refusals: [] });
  const stats = client.stats().servers[0];
  expect(stats).toMatchObject({
    losses: 1,
    lastProblem: "the server sent updated, which was not asked for",
  });
});

test("advanceEpoch: never goes back", () => {
  const { client } = withServer();
  client.advanceEpoch(weightEpoch(2));
  client.advanceEpoch(weightEpoch(2));
  expect(() => client.advanceEpoch(weightEpoch(1))).toThrow("weight epochs do not go back");
});

test("batchSpeculate: no asks and unknown groups get nothing", () => {
  const { client } = withServer();
  client.registerGroup(A, TTL);
  expect(draftsOf(client, A, 0)).toEqual([]);
  expect(draftsOf(client, B, 1)).toEqual([[]]);
});
