// What the property test does not reach: progress, refusals, limits, and the codes of closed connections.

import { expect, test } from "bun:test";
import { Bed } from "../../../test/suite/sidecar-bed.ts";
import { FakeSocket, type ReadFrame, readFrame } from "../../../test/suite/stream-client.ts";
import { assert } from "../../core/base/assert.ts";
import { weightEpoch, workerId } from "../../core/base/ids.ts";
import { CompletedGroups } from "../completed-groups.ts";
import { type StreamLimits, StreamService } from "./service.ts";

interface World {
  readonly bed: Bed;
  readonly service: StreamService;
  tick(): void;
  connect(): { socket: FakeSocket; frames: ReadFrame[] };
  say(socket: FakeSocket, message: object): void;
}

function world(
  { keptBytes = 2 ** 24, ...limits }: Partial<StreamLimits> & { keptBytes?: number } = {},
  failures: unknown[] = [],
): World {
  const bed = new Bed({ workers: 1, lengthOf: () => 11 });
  const acts = new Set<() => void>();
  const service = new StreamService({
    sidecar: bed.sidecar,
    completed: new CompletedGroups(bed.sidecar, keptBytes),
    failed: (error) => failures.push(error),
    limits,
    random: () => 5,
    every: (act) => {
      acts.add(act);
      return () => acts.delete(act);
    },
  });
  return {
    bed,
    service,
    tick: () => {
      for (const act of acts) act();
    },
    connect: () => {
      const frames: ReadFrame[] = [];
      const socket = new FakeSocket((data) => frames.push(readFrame(data)));
      service.open(socket);
      return { socket, frames };
    },
    say: (socket, message) => service.message(socket, JSON.stringify(message)),
  };
}

test("a slow client is dropped with a reason, and no other client waits", async () => {
  const { bed, service, connect, say } = world({ sendQueueBytes: 600 });
  bed.generate([1], 4);
  const slow = connect();
  const quick = connect();
  for (const { socket } of [slow, quick]) say(socket, { subscribe: { all: true } });
  slow.socket.isReading = false;
  await bed.finish();
  expect(slow.socket.closed).toMatchObject({ code: 1013 });
  expect(slow.socket.closed?.reason).toStartWith("slow_consumer");
  expect(quick.frames.flatMap(({ finished }) => finished).length).toBe(4);
  expect(service.stats()).toMatchObject({ clients: 1, closed: { 1013: 1 } });
});

test("history that a client does not read waits in the response, not in its queue", async () => {
  const { bed, service, connect, say } = world({ sendQueueBytes: 1000 });
  bed.generate([1], 4);
  await bed.finish();
  const { socket, frames } = connect();
  socket.isReading = false;
  for (let request = 0; request < 4; request += 1) {
    say(socket, { subscribe: { request, snapshot: true } });
  }
  expect(socket.unread.length).toBeLessThan(8);
  socket.isReading = true;
  socket.readAll();
  service.drain(socket);
  expect(socket.closed).toBeNull();
  expect(frames.flatMap(({ tokens }) => tokens.map((one) => one.token_ids.length))).toEqual([
    11, 11, 11, 11,
  ]);
});

test.each([
  ["{", 1007],
  ["{}", 1007],
  ['{"subscribe":{"all":true,"progress":true}}', 1007],
  ['{"subscribe":{"all":true,"offset":3}}', 1007],
  ['{"subscribe":{"request":-1}}', 1007],
  [Uint8Array.of(1), 1003],
] as const)("the frame %j closes the connection with its code, and no other one", (data, code) => {
  const { service, connect, say } = world();
  const bad = connect();
  const good = connect();
  service.message(bad.socket, data);
  expect(bad.socket.closed).toMatchObject({ code });
  say(good.socket, { subscribe: { all: true } });
  expect(good.frames[0]?.state).toBe("subscribed");
});

test("refusals: responses that are over, doubled subscriptions, one subscription too many", async () => {
  const { bed, connect, say } = world({ subscriptionsMax: 2 });
  bed.generate([9], 1);
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  bed.generate([1], 1, { group: "mine" });
  const { socket, frames } = connect();
  const answer = (message: object) => {
    say(socket, message);
    return frames.at(-1)?.refused?.code;
  };
  expect(answer({ subscribe: { request: 0 } })).toBe("not_found");
  say(socket, { subscribe: { group: "mine" } });
  expect(answer({ subscribe: { group: "mine" } })).toBe("conflict");
  say(socket, { subscribe: { all: true } });
  expect(answer({ subscribe: { progress: true } })).toBe("queue_full");
  expect(socket.closed).toBeNull();
});

const ended = (frames: readonly ReadFrame[]) =>
  frames.flatMap(({ finished }) => finished.map(({ request }) => request));

test("all: nothing of what had ended before comes, and what runs goes on from where it is", async () => {
  const { bed, connect, say } = world();
  bed.generate([1], 2);
  await bed.finish();
  const [running] = bed.generate([2], 1);
  await bed.step();
  const had = running?.response.length;
  expect(had).toBeGreaterThan(0);
  const { socket, frames } = connect();
  say(socket, { subscribe: { all: true } });
  expect(frames.flatMap(({ joined }) => joined)).toMatchObject([{ request: 2, offset: had }]);
  bed.generate([3], 1);
  await bed.finish();
  expect(ended(frames)).toEqual([2, 3]);
});

test("snapshot: what is there comes first, with its tokens and ends, and for progress with its lengths", async () => {
  const { bed, connect, say } = world();
  bed.generate([1], 2);
  await bed.finish();
  for (const filter of [{ all: true }, { group: "g1" }, { request: 0 }, { progress: true }]) {
    const { socket, frames } = connect();
    say(socket, { subscribe: { ...filter, snapshot: true } });
    const all = "request" in filter ? [0] : [0, 1];
    expect(ended(frames)).toEqual(all);
    expect(frames.flatMap(({ groupsFinished }) => groupsFinished)).toEqual(
      "request" in filter ? [] : ["g1"],
    );
    const tokens = frames.flatMap((frame) => frame.tokens.map((one) => one.token_ids.length));
    expect(tokens).toEqual("progress" in filter ? [] : all.map(() => 11));
  }
});

test("names: of a group's name that is used again, the ended group is not sent and does not end the subscription", async () => {
  const { bed, connect, say } = world();
  bed.generate([1], 2, { group: "mine" });
  await bed.finish();
  const { socket, frames } = connect();
  say(socket, { subscribe: { group: "mine" } });
  bed.sidecar.advance(weightEpoch(1));
  bed.generate([2], 1, { group: "mine" });
  await bed.finish();
  expect(ended(frames)).toEqual([2]);
  expect(frames.flatMap(({ state }) => state ?? [])).toEqual(["subscribed"]);
});

test("resuming: a subscription that broke gets what it lacks, of groups that are complete too, as far as they are kept", async () => {
  const { bed, connect, say } = world({ keptBytes: 6_000 });
  bed.generate([1], 3, { group: "mine" });
  await bed.finish();
  bed.sidecar.advance(weightEpoch(1));
  await bed.finish();
  const resume = (resumed: object) => {
    const { socket, frames } = connect();
    say(socket, { subscribe: { group: "mine", resumed } });
    return frames;
  };
  // More than is kept.
  expect(resume({ server: 5, requests: 0, have: [] }).map(({ state }) => state)).toEqual([
    "subscribed",
  ]);
  bed.generate([2], 2, { group: "mine" });
  await bed.finish();
  bed.sidecar.advance(weightEpoch(2));
  await bed.finish();
  const frames = resume({ server: 5, requests: 5, have: [[4, 9, 5]] });
  const sent = frames.flatMap(({ tokens }) => tokens);
  expect(sent.map(({ request, offset, token_ids: ids }) => [request, offset, ids.length])).toEqual([
    [4, 9, 2],
  ]);
  expect([ended(frames), frames.at(-1)?.state]).toEqual([[4], "ended"]);
  // Of another server the numbers say nothing.
  expect(ended(resume({ server: 6, requests: 5, have: [[4, 9, 5]] }))).toEqual([3, 4]);
});

test("limits: one client too many, a frame too long", () => {
  const { service, connect } = world({ clientsMax: 2, frameBytesMax: 50 });
  const first = connect();
  connect();
  expect(connect().socket.closed).toMatchObject({ code: 1013 });
  service.message(first.socket, " ".repeat(51));
  expect(first.socket.closed).toMatchObject({ code: 1007 });
});

test("end: every connection is closed when the server stops", () => {
  const { service, connect } = world();
  const { socket } = connect();
  service.end();
  expect(socket.closed).toEqual({ code: 1001, reason: "draining" });
});

test("fault: whatever cannot be written for one client closes it with 1011, and no other", async () => {
  const failures: unknown[] = [];
  const { bed, connect, say } = world({}, failures);
  const bad = connect();
  const good = connect();
  say(good.socket, { subscribe: { all: true } });
  bed.generate([1], 1);
  say(bad.socket, { subscribe: { request: 0 } });
  bad.socket.send = () => {
    throw new Error("no such socket");
  };
  await bed.finish();
  expect(bad.socket.closed).toEqual({ code: 1011, reason: "internal_error" });
  expect(good.socket.closed).toBeNull();
  const told = good.frames.flatMap(({ tokens }) => tokens.flatMap(({ token_ids: ids }) => ids));
  expect(told.length).toBe(11);
  expect(failures.map(String)).toEqual(["Error: no such socket"]);
});

test("a response that an earlier process began comes from its first token on", async () => {
  const { bed, connect, say } = world();
  const { socket, frames } = connect();
  say(socket, { subscribe: { all: true } });
  const [request] = bed.generate([1], 1);
  assert(request !== undefined, "one was wanted");
  const chunk = {
    workerId: workerId(0),
    epoch: weightEpoch(0),
    weights: null,
    offset: 0,
    tokens: 2,
  };
  bed.sidecar.rollout.restore(request, {
    tokens: Int32Array.of(8, 9),
    logprobs: new Float32Array(2),
    top: null,
    chunks: [chunk],
    finish: null,
    refusal: null,
  });
  await bed.finish();
  const pieces = frames.flatMap(({ tokens }) => tokens);
  expect(pieces[0]).toMatchObject({ offset: 0, token_ids: [8, 9] });
  expect(pieces.flatMap((one) => one.token_ids)).toEqual(Array.from(request.response.tokens()));
});

test("a client that is dropped for what its own message brings about leaves nothing behind", () => {
  const { bed, service, connect, say } = world({ sendQueueBytes: 50 });
  const { socket } = connect();
  say(socket, { subscribe: { all: true } });
  socket.isReading = false;
  bed.generate([1], 4);
  say(socket, { subscribe: { request: 0 } });
  expect(socket.closed).toMatchObject({ code: 1013 });
  expect(service.stats()).toMatchObject({ clients: 0, subjects: 0 });
});
