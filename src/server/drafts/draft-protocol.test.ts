// The draft protocol (docs/PROTOCOL.md) as a peer sees it, on a real socket: what each message is answered with, the
// bounds of a server, and what only a socket can do: text, garbage, oversized frames, cuts at every byte. The Python
// client is held to the same protocol by native/foretoken_vllm/tests/test_link.py.

import { afterAll, expect, test } from "bun:test";
import { CuttingProxy } from "../../../test/faults/cutting-proxy.ts";
import {
  encodeClientMessage,
  exchange,
  fetchOf,
  registerOf,
  serveDrafts,
  TTL_MS,
  updateOf,
} from "../../../test/suite/draft-client.ts";
import { groupId } from "../../core/base/ids.ts";
import { DRAFT_PROTOCOL_VERSION, type DraftServerLimits } from "../../core/draft/service/limits.ts";
import type { ClientMessage } from "../../core/draft/service/message.ts";
import { DraftServer, EPOCHS_AHEAD_MAX } from "../../core/draft/service/server.ts";

const A = groupId("group-a");
const PROMPT = Int32Array.of(1, 2, 3);
const RELEASE = "0.2.0";

/** Tokens with repetitions. */
function tokensOf(count: number): Int32Array {
  return Int32Array.from({ length: count }, (_, i) => ((i * 5) % 23) + 10);
}

function serve(limits: Partial<DraftServerLimits> = {}, leads = false) {
  let skippedMs = 0;
  const clock = { nowMs: () => performance.now() + skippedMs };
  const server = new DraftServer({ clock, instanceId: 7, limits, leads, release: RELEASE });
  const { http } = serveDrafts(server);
  return {
    port: Number(http.url.port),
    url: `ws://${http.url.host}/v1/draft`,
    stats: () => server.stats(),
    advance: (ms: number) => {
      skippedMs += ms;
    },
    stop: () => http.stop(),
  };
}

/** Runs `exchange` with a new server; `stats` at its end. */
async function asked(
  messages: readonly (ClientMessage | Uint8Array | string)[],
  limits: Partial<DraftServerLimits> = {},
) {
  const { url, stop, stats } = serve(limits);
  const { answers } = await exchange(url, messages);
  const end = { answers, stats: stats() };
  await stop();
  return end;
}

const HELLO: ClientMessage = { kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION };
const register = (epoch = 0, group = A, prompt = PROMPT) => registerOf(group, prompt, epoch);
const update = (offset: number, tokens: Int32Array, epoch = 0) =>
  updateOf(A, { sampleIndex: 0, offset, tokens }, epoch);
const wanted = (have: readonly number[], epoch = 0, group = A) => fetchOf(group, have, epoch);

test("fetch: brings what the client lacks, and tells which responses the server has less of", async () => {
  const log = tokensOf(90);
  const { answers } = await asked([
    HELLO,
    register(),
    update(0, log),
    wanted([]),
    wanted([60]),
    wanted([90]),
    wanted([95]),
  ]);
  const groups = answers.slice(3).map((answer) => (answer.kind === "fetched" ? answer.groups : []));
  const deltas = groups.map(([group]) =>
    group?.deltas.map(({ offset, tokens }) => [offset, [...tokens]]),
  );
  expect(deltas).toEqual([[[0, [...log]]], [[60, [...log.subarray(60)]]], undefined, []]);
  expect(groups[3]?.[0]?.behind).toEqual([{ sampleIndex: 0, have: 90 }]);
  expect(groups.map(([group]) => group?.version)).toEqual([90, 90, undefined, 90]);
});

test("epochs: an older one is refused, the next one drops everything", async () => {
  const log = tokensOf(10);
  const { answers, stats } = await asked([
    HELLO,
    register(1),
    update(0, log, 1),
    update(0, log, 0),
    wanted([], 0),
    register(0),
    wanted([], 2),
  ]);
  const seen = answers
    .slice(1)
    .map((answer) => ("status" in answer ? `${answer.status} ${answer.epoch}` : ""));
  const stale = "stale_epoch 1";
  expect(seen).toEqual(["ok 1", "ok 1", stale, stale, stale, "ok 2"]);
  expect(answers[6]).toMatchObject({ kind: "fetched", groups: [], unknown: [A] });
  expect(stats).toMatchObject({ groups: 0 });
});

for (const leads of [false, true]) {
  test(`epochs, ${leads ? "leading" : "led"}: one far ahead ends its connection, and honest peers are served on`, async () => {
    const { url, stop, stats } = serve({}, leads);
    await exchange(url, [HELLO, register(leads ? 0 : 7)]);
    const honest = leads ? 0 : 7;
    for (const epoch of [2 ** 32 - 1, honest + EPOCHS_AHEAD_MAX + 1]) {
      for (const message of [register(epoch), update(0, tokensOf(3), epoch), wanted([], epoch)]) {
        const { closed, answers } = await exchange(url, [HELLO, message]);
        expect(answers.length).toBe(1);
        expect(closed?.code).toBe(1007);
        const bound = `more than ${EPOCHS_AHEAD_MAX} ahead of the server's ${honest}`;
        expect(closed?.reason).toBe(`invalid_message: epoch is ${epoch}, ${bound}`);
      }
    }
    const { answers } = await exchange(url, [HELLO, update(0, tokensOf(5), honest)]);
    expect(answers[1]).toMatchObject({ kind: "updated", status: "ok", epoch: honest });
    expect(stats()).toMatchObject({ epoch: honest, tokensTaken: 5 });
    // A few weight updates ahead: a server that leads answers, one that does not follows.
    const ahead = await exchange(url, [HELLO, register(honest + 3)]);
    const status = leads ? "stale_epoch" : "ok";
    expect(ahead.answers[1]).toMatchObject({ status, epoch: leads ? honest : honest + 3 });
    await stop();
  });
}

test("register: a group with another prompt is refused", async () => {
  const other = register(0, A, Int32Array.of(9));
  const { answers, stats } = await asked([HELLO, register(), update(0, tokensOf(50)), other]);
  expect(answers[3]).toMatchObject({ status: "conflict" });
  expect(stats).toMatchObject({ tokensTaken: 50 });
});

test("register: a group lives as long as it is used, and no longer", async () => {
  const { url, stop, stats, advance } = serve();
  await exchange(url, [HELLO, register()]);
  for (let i = 0; i < 3; i += 1) {
    advance(TTL_MS * 0.9);
    const { answers } = await exchange(url, [HELLO, wanted([])]);
    expect(answers[1]).toMatchObject({ unknown: [] });
  }
  advance(TTL_MS * 1.1);
  const { answers } = await exchange(url, [HELLO, wanted([]), update(0, tokensOf(5))]);
  expect(answers[1]).toMatchObject({ unknown: [A] });
  expect(answers[2]).toMatchObject({ refusals: [{ groupId: A, reason: "unknown", have: 0 }] });
  expect(stats()).toMatchObject({ groups: 0, bytes: 0 });
  await stop();
});

test("limits: without room the group used longest ago goes", async () => {
  const { url, stop, stats, advance } = serve({ bytesMax: 8192 });
  const b = groupId("b");
  const c = groupId("c");
  await exchange(url, [HELLO, register()]);
  advance(1);
  await exchange(url, [HELLO, register(0, b, new Int32Array(1000))]);
  advance(1);
  const { answers } = await exchange(url, [
    HELLO,
    wanted([]),
    register(0, c, new Int32Array(1000)),
    wanted([]),
    wanted([], 0, b),
  ]);
  expect(answers[3]).toMatchObject({ unknown: [] });
  expect(answers[4]).toMatchObject({ unknown: [b] });
  expect(stats().groupsEvicted).toBe(1);
  expect(stats().bytes).toBeLessThanOrEqual(8192);
  await stop();
});

const shared = serve({ frameBytesMax: 65_536 });
afterAll(() => shared.stop());

const BAD: [string, (ClientMessage | Uint8Array | string)[], number, string][] = [
  ["a text frame", ["hello"], 1003, "unexpected_text"],
  ["an empty frame", [new Uint8Array(0)], 1007, "invalid_message: the frame has no body"],
  ["a frame that is not protobuf", [Uint8Array.of(0x0a, 0xff)], 1007, "undecodable"],
  [
    "a frame cut short",
    [HELLO, encodeClientMessage(register()).subarray(0, 8)],
    1007,
    "undecodable",
  ],
  ["a group without a name", [register(0, groupId(""))], 1007, "invalid_message: group_id"],
  [
    "another version",
    [{ kind: "hello", protocolVersion: 99 }],
    1008,
    "version: draft protocol 99; this server speaks 1",
  ],
  [
    "a plugin of another release",
    [{ ...HELLO, release: "0.1.9" }],
    1008,
    "version: plugin 0.1.9, sidecar 0.2.0: install foretoken[vllm]==0.2.0 beside vLLM",
  ],
  ["no hello", [register()], 1002, "unexpected_message: register_group before hello"],
  ["a second hello", [HELLO, HELLO, HELLO], 1002, "unexpected_message: a second hello"],
];

for (const [what, frames, code, reason] of BAD) {
  test(`socket: ${what} ends the connection with ${code}, and only that one`, async () => {
    const { closed } = await exchange(shared.url, frames);
    expect(closed?.code).toBe(code);
    expect(closed?.reason).toStartWith(reason);
    const { answers } = await exchange(shared.url, [HELLO]);
    expect(answers).toMatchObject([{ kind: "welcome" }]);
  });
}

test("socket: a plugin of the same release is welcome", async () => {
  const { answers } = await exchange(shared.url, [{ ...HELLO, release: RELEASE }]);
  expect(answers).toMatchObject([{ kind: "welcome" }]);
});

test("socket: an oversized frame ends the connection, and only that one", async () => {
  const { closed } = await exchange(shared.url, [new Uint8Array(65_537)]);
  expect(closed).not.toBeNull();
  expect((await exchange(shared.url, [HELLO])).answers).toMatchObject([{ kind: "welcome" }]);
});

test("socket: frames that arrive byte by byte are read whole", async () => {
  const proxy = await CuttingProxy.listen(() => shared.port);
  proxy.dribbles = true;
  const url = `ws://127.0.0.1:${proxy.port}/v1/draft`;
  expect((await exchange(url, [HELLO])).answers).toMatchObject([{ kind: "welcome" }]);
  await proxy.close();
});

test("socket: a client that begins again where the server stands loses and repeats nothing", async () => {
  const { port, stop, stats } = serve();
  const proxy = await CuttingProxy.listen(() => port);
  const url = `ws://127.0.0.1:${proxy.port}/v1/draft`;
  const log = tokensOf(900);
  let have = 0;
  for (let bytes = 0; have < log.length; bytes = (bytes + 7) % 1200) {
    proxy.cutAfterBytes = bytes;
    const next = update(have, log.subarray(have, have + 9));
    for (const answer of (await exchange(url, [HELLO, register(), next])).answers) {
      if (answer.kind === "registered") have = Math.max(have, answer.have[0] ?? 0);
      if (answer.kind === "updated" && answer.refusals.length === 0) have += 9;
    }
  }
  proxy.cutAfterBytes = null;
  const { answers } = await exchange(url, [HELLO, wanted([])]);
  const last = answers[1];
  const fetched = last?.kind === "fetched" ? last.groups[0]?.deltas[0]?.tokens : undefined;
  expect([...(fetched ?? [])]).toEqual([...log]);
  expect(proxy.cuts).toBeGreaterThan(50);
  expect(stats().tokensTaken).toBe(900);
  await proxy.close();
  await stop();
});
