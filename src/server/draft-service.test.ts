// The service's contract over WebSocket and protobuf on a loopback socket, and what only a socket can
// do: cuts at every byte, text, rubbish, oversized frames, peers that do not read.

import { afterAll, expect, test } from "bun:test";
import { WebSocket } from "ws";
import { CuttingProxy } from "../../test/suite/cutting-proxy.ts";
import {
  type DraftHarness,
  draftServiceSuite,
  draftsOf,
  expectedDrafts,
  newClient,
  tokensOf,
} from "../../test/suite/draft-service-suite.ts";
import { present } from "../base/assert.ts";
import { groupId, weightEpoch } from "../base/ids.ts";
import { DRAFT_PROTOCOL_VERSION, type DraftServerLimits } from "../draft/service/limits.ts";
import type { ClientMessage } from "../draft/service/message.ts";
import { DraftServer } from "../draft/service/server.ts";
import { decodeServerMessage, encodeClientMessage } from "../proto/draft-codec.ts";
import { socketDial } from "./draft-client.ts";
import { DraftService, type DraftServiceOptions } from "./draft-service.ts";

const A = groupId("a");
const PROMPT = Int32Array.of(1, 2, 3);
const HELLO: ClientMessage = { kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION };
const REGISTER: ClientMessage = {
  kind: "register_group",
  epoch: weightEpoch(0),
  groupId: A,
  ttlMs: 60_000,
  prompt: PROMPT,
};

/** The wall clock, and whatever a test skipped. */
class SkippingClock {
  #skippedMs = 0;

  nowMs(): number {
    return performance.now() + this.#skippedMs;
  }

  advance(ms: number): void {
    this.#skippedMs += ms;
  }
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

async function listen(
  limits: Partial<DraftServerLimits> = {},
  options: Partial<DraftServiceOptions> = {},
): Promise<{ server: DraftServer; service: DraftService }> {
  const server = new DraftServer({ clock: new SkippingClock(), instanceId: 7, limits });
  const service = await DraftService.listen({ server, host: "127.0.0.1", port: 0, ...options });
  return { server, service };
}

const portOf = (service: DraftService) => Number(new URL(service.url).port);

async function connectSockets(limits: Partial<DraftServerLimits> = {}): Promise<DraftHarness> {
  const clock = new SkippingClock();
  let instanceId = 0;
  const start = async () => {
    instanceId += 1;
    const server = new DraftServer({ clock, instanceId, limits });
    const service = await DraftService.listen({
      server,
      host: "127.0.0.1",
      port: 0,
      closeMsMax: 50,
    });
    return { server, service };
  };
  let current = await start();
  let isStopped = false;
  // A proxy keeps the address the same across restarts, and can cut.
  const proxy = await CuttingProxy.listen(() => portOf(current.service));
  const stop = async () => {
    isStopped = true;
    proxy.cut();
    await current.service.drain();
  };
  return {
    dial: socketDial({ url: `ws://127.0.0.1:${proxy.port}/v1/draft` }),
    nowMs: () => clock.nowMs(),
    advance: (ms) => clock.advance(ms),
    step: turn,
    stats: () => current.server.stats(),
    cut: () => proxy.cut(),
    stop,
    start: async () => {
      current = await start();
      isStopped = false;
    },
    close: async () => {
      if (!isStopped) await stop();
      await proxy.close();
    },
  };
}

draftServiceSuite("over sockets", connectSockets);

/** A bare WebSocket; resolves with what ended it. */
async function closeOf(
  url: string,
  sent: readonly (Uint8Array | string)[],
): Promise<{ code: number; reason: string }> {
  const socket = new WebSocket(url);
  socket.on("error", () => {});
  await new Promise((resolve) => socket.once("open", resolve));
  for (const data of sent) socket.send(data);
  return new Promise((resolve) => {
    socket.once("close", (code, reason) => resolve({ code, reason: reason.toString() }));
  });
}

/** A good exchange: what the service must still do after bad input. */
async function isServing(url: string): Promise<boolean> {
  const socket = new WebSocket(url);
  await new Promise((resolve) => socket.once("open", resolve));
  const answer = new Promise<Uint8Array>((resolve) => socket.once("message", resolve));
  socket.send(encodeClientMessage(HELLO));
  const decoded = decodeServerMessage(await answer);
  socket.terminate();
  return decoded.kind === "ok" && decoded.message.kind === "welcome";
}

const shared = await listen({ frameBytesMax: 65_536 });
afterAll(() => shared.service.drain());

const BAD: [string, (Uint8Array | string)[], number, string][] = [
  ["a text frame", ["hello"], 1003, "unexpected_text"],
  ["an empty frame", [new Uint8Array(0)], 1007, "invalid_message: the frame has no body"],
  ["a frame that is not protobuf", [Uint8Array.of(0x0a, 0xff)], 1007, "undecodable"],
  [
    "a frame cut short",
    [encodeClientMessage(HELLO), encodeClientMessage(REGISTER).subarray(0, 8)],
    1007,
    "undecodable",
  ],
  [
    "a group without a name",
    [encodeClientMessage({ ...REGISTER, groupId: groupId("") })],
    1007,
    "invalid_message: group_id",
  ],
  ["another version", [encodeClientMessage({ ...HELLO, protocolVersion: 2 })], 1008, "version"],
  ["no hello", [encodeClientMessage(REGISTER)], 1002, "unexpected_message"],
  ["an oversized frame", [new Uint8Array(65_537)], 1009, ""],
];

for (const [what, frames, code, reason] of BAD) {
  test(`service: ${what} ends the connection with ${code}, and only that one`, async () => {
    const closed = await closeOf(shared.service.url, frames);
    expect(closed.code).toBe(code);
    expect(closed.reason).toStartWith(reason);
    expect(await isServing(shared.service.url)).toBe(true);
  });
}

test("service: frames that arrive byte by byte are read whole", async () => {
  const proxy = await CuttingProxy.listen(() => portOf(shared.service));
  proxy.dribbles = true;
  expect(await isServing(`ws://127.0.0.1:${proxy.port}/v1/draft`)).toBe(true);
  await proxy.close();
});

test("service: connections cut after every number of bytes lose and repeat nothing", async () => {
  const { server, service } = await listen();
  const proxy = await CuttingProxy.listen(() => portOf(service));
  const clock = new SkippingClock();
  const dial = socketDial({ url: `ws://127.0.0.1:${proxy.port}/v1/draft` });
  const clients = [1, 2].map((id) => newClient(clock, { s: dial }, { id }));
  const logs = [tokensOf(0, 900), tokensOf(1, 900)];
  for (const { client } of clients) client.registerGroup(A, { prompt: PROMPT, ttlMs: 60_000 });
  for (let bytes = 0; bytes < 900; bytes += 9) {
    proxy.cutAfterBytes = bytes;
    proxy.cut();
    const cuts = proxy.cuts + clients.length;
    for (const [i, { client }] of clients.entries()) {
      const tokens = present(logs[i], "a log each").subarray(bytes, bytes + 9);
      client.append(A, { sampleIndex: i, offset: bytes, tokens });
    }
    for (let i = 0; i < 200_000 && proxy.cuts < cuts; i += 1) {
      for (const { client } of clients) client.poll(clock.nowMs());
      await turn();
    }
  }
  expect(proxy.cuts).toBeGreaterThanOrEqual(200);
  proxy.cutAfterBytes = null;
  proxy.cut();
  const wanted = expectedDrafts(A, logs);
  const isDone = () =>
    clients.every(({ client }) => Bun.deepEquals(draftsOf(client, A, 2), wanted));
  for (let i = 0; i < 200_000 && !isDone(); i += 1) {
    for (const { client } of clients) client.poll(clock.nowMs());
    await turn();
  }
  for (const { client } of clients) expect(draftsOf(client, A, 2)).toEqual(wanted);
  expect(server.stats().tokensTaken).toBe(1800);
  for (const { client } of clients) client.close();
  await proxy.close();
  await service.drain();
});

test("service: a peer that does not read is dropped with 1013, others are served", async () => {
  const { server, service } = await listen({}, { sendQueueBytes: 1 << 20 });
  server.register({ ...REGISTER, kind: "register_group" });
  const tokens = new Int32Array(200_000);
  const deltas = [{ sampleIndex: 0, offset: 0, tokens }];
  server.update({ kind: "update", epoch: weightEpoch(0), groups: [{ groupId: A, deltas }] });
  const socket = new WebSocket(service.url);
  const closed = new Promise<number>((resolve) => socket.once("close", resolve));
  await new Promise((resolve) => socket.once("open", resolve));
  socket.pause();
  socket.send(encodeClientMessage(HELLO));
  const fetch = encodeClientMessage({
    kind: "fetch",
    epoch: weightEpoch(0),
    states: [{ groupId: A, have: [] }],
  });
  while (service.stats().closed[1013] === undefined) {
    socket.send(fetch);
    await turn();
  }
  const { bytesSent } = service.stats();
  expect(await isServing(service.url)).toBe(true);
  socket.resume();
  expect(await closed).toBe(1013);
  expect(bytesSent).toBeLessThan(64 << 20);
  await service.drain();
});

test("service: one connection too many is told to come later", async () => {
  const { service } = await listen({}, { connectionsMax: 1 });
  const first = new WebSocket(service.url);
  await new Promise((resolve) => first.once("open", resolve));
  expect((await closeOf(service.url, [])).code).toBe(1013);
  first.terminate();
  while (service.stats().connections > 0) await turn();
  expect(await isServing(service.url)).toBe(true);
  await service.drain();
});

test("service: a peer that says nothing is dropped", async () => {
  const { service } = await listen({}, { silenceMsMax: 20 });
  expect((await closeOf(service.url, [])).code).toBe(1002);
  await service.drain();
});

test("service: draining tells every peer to go, and listens no more", async () => {
  const { service } = await listen();
  const { url } = service;
  const closed = closeOf(url, [encodeClientMessage(HELLO)]);
  while (service.stats().framesReceived === 0) await turn();
  await service.drain();
  expect((await closed).code).toBe(1001);
  const refused = new WebSocket(url);
  expect(await new Promise((resolve) => refused.once("error", () => resolve("refused")))).toBe(
    "refused",
  );
});

test("service: an address in use is told by name", async () => {
  const port = portOf(shared.service);
  const server = new DraftServer({ clock: new SkippingClock(), instanceId: 1 });
  const listening = DraftService.listen({ server, host: "127.0.0.1", port });
  expect(listening).rejects.toThrow(`cannot listen on 127.0.0.1:${port}`);
});

test("dial: a URL that is none of a WebSocket is refused by name", () => {
  expect(() => socketDial({ url: "http://x" })).toThrow('"http://x" is not a draft server');
  expect(() => socketDial({ url: "x" })).toThrow("is not a draft server");
});
