// What the draft service must hold, whatever carries its messages: in one process, and over WebSocket
// and protobuf on a real socket. Each test file of an implementation calls `draftServiceSuite`.

import { expect, test } from "bun:test";
import { present } from "../../src/base/assert.ts";
import { type GroupId, groupId, weightEpoch } from "../../src/base/ids.ts";
import type { DraftAsk, Drafts } from "../../src/draft/drafter.ts";
import { Replica } from "../../src/draft/replica.ts";
import { DraftClient } from "../../src/draft/service/client.ts";
import {
  DRAFT_PROTOCOL_VERSION,
  type DraftClientLimits,
  type DraftServerLimits,
} from "../../src/draft/service/limits.ts";
import type { Dial } from "../../src/draft/service/link.ts";
import type { ClientMessage, ServerMessage } from "../../src/draft/service/message.ts";
import { shardOf } from "../../src/draft/service/rendezvous.ts";
import type { DraftServerStats } from "../../src/draft/service/server.ts";

/** One draft server that can be reached, and what may happen to it. */
export interface DraftHarness {
  readonly dial: Dial;
  nowMs(): number;
  /** Moves the clock; what takes no time is not affected. */
  advance(ms: number): void;
  /** Lets what is under way go on for a moment. */
  step(): Promise<void>;
  stats(): DraftServerStats;
  /** Breaks every connection, as a network does. */
  cut(): void;
  /** The server is gone: its connections too. */
  stop(): Promise<void>;
  /** An empty server with another instance id takes its place. */
  start(): Promise<void>;
  close(): Promise<void>;
}

export type Connect = (limits?: Partial<DraftServerLimits>) => Promise<DraftHarness>;

/** More than any loopback exchange takes, in turns of the event loop. */
const STEPS_MAX = 200_000;
const PROMPT = Int32Array.of(1, 2, 3);
const A = groupId("group-a");
const TTL_MS = 60_000;

export interface TestClient {
  readonly client: DraftClient;
  readonly replica: Replica;
}

/** Learning replicas draft alike only if they were asked alike. */
export function newReplica(): Replica {
  return new Replica({ limitBytes: 64 << 20, learning: false });
}

export function newClient(
  harness: { nowMs(): number },
  dials: Record<string, Dial>,
  options: { id?: number; limits?: Partial<DraftClientLimits>; replica?: Replica } = {},
): TestClient {
  const replica = options.replica ?? newReplica();
  const client = new DraftClient({
    drafter: replica,
    servers: Object.entries(dials).map(([name, dial]) => ({ name, dial })),
    clientId: options.id ?? 1,
    epoch: weightEpoch(0),
    nowMs: harness.nowMs(),
    limits: { fetchMs: 1, flushMs: 0, retryMsMin: 1, retryMsMax: 4, ...options.limits },
  });
  return { client, replica };
}

/** Tokens with repetitions, so that there is something to draft. */
export function tokensOf(seed: number, count: number): Int32Array {
  return Int32Array.from({ length: count }, (_, i) => ((i * (seed % 3 === 0 ? 5 : 7)) % 23) + 10);
}

/** Tokens drafted for each of the group's first `samples` responses. */
export function draftsOf(client: DraftClient, group: GroupId, samples: number): number[][] {
  return draftsFrom((asks) => client.batchSpeculate(asks), group, samples);
}

function draftsFrom(
  propose: (asks: readonly DraftAsk[]) => Drafts,
  group: GroupId,
  samples: number,
): number[][] {
  const asks: DraftAsk[] = Array.from({ length: samples }, (_, sampleIndex) => ({
    groupId: group,
    sampleIndex,
    tokensMax: 8,
    probabilityMin: 0.001,
    tree: true,
  }));
  const { start, tokens, parents } = propose(asks);
  return asks.map((_, i) => [
    ...tokens.subarray(start[i], start[i + 1]),
    ...parents.subarray(start[i], start[i + 1]),
  ]);
}

/** Cores take long to collect, so those that a test needs often are used again. */
const reference = newReplica();

/** What a replica drafts that was handed the logs directly. */
export function expectedDrafts(
  group: GroupId,
  logs: readonly Int32Array[],
  prompt: Int32Array = PROMPT,
): number[][] {
  reference.clear();
  reference.register(group, prompt);
  for (const [i, tokens] of logs.entries()) reference.update(group, i, 0, tokens);
  return draftsFrom((asks) => reference.propose(asks), group, logs.length);
}

async function until(
  harness: DraftHarness,
  clients: readonly TestClient[],
  isDone: () => boolean,
): Promise<void> {
  for (let i = 0; i < STEPS_MAX; i += 1) {
    for (const { client } of clients) client.poll(harness.nowMs());
    if (isDone()) return;
    await harness.step();
  }
  const stats = clients.map(({ client }) => client.stats());
  throw new Error(`never came about: ${JSON.stringify({ server: harness.stats(), stats })}`);
}

function drafts(client: TestClient, samples: number, group = A): string {
  return JSON.stringify(draftsOf(client.client, group, samples));
}

/** Polls until every client drafts what the logs say. */
async function converge(
  harness: DraftHarness,
  clients: readonly TestClient[],
  logs: readonly Int32Array[],
  group = A,
): Promise<void> {
  const wanted = JSON.stringify(expectedDrafts(group, logs));
  const isDone = () => clients.every((client) => drafts(client, logs.length, group) === wanted);
  await until(harness, clients, isDone);
}

/** Sends messages on a bare link; their answers, and why the link closed, if it did. */
async function exchange(
  harness: DraftHarness,
  messages: readonly ClientMessage[],
): Promise<{ answers: ServerMessage[]; problem: string | null }> {
  const answers: ServerMessage[] = [];
  let [isOpen, problem] = [false, null as string | null];
  const link = harness.dial({
    opened: () => {
      isOpen = true;
    },
    received: (message) => answers.push(message),
    closed: (why) => {
      problem = why;
    },
  });
  await until(harness, [], () => isOpen);
  for (const message of messages) link.send(message);
  await until(harness, [], () => answers.length === messages.length || problem !== null);
  link.close();
  return { answers, problem };
}

const HELLO: ClientMessage = { kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION };
const register = (epoch = 0, group = A, prompt = PROMPT): ClientMessage => ({
  kind: "register_group",
  epoch: weightEpoch(epoch),
  groupId: group,
  ttlMs: TTL_MS,
  prompt,
});
const update = (offset: number, tokens: Int32Array, epoch = 0): ClientMessage => ({
  kind: "update",
  epoch: weightEpoch(epoch),
  groups: [{ groupId: A, deltas: [{ sampleIndex: 0, offset, tokens }] }],
});
const fetchOf = (have: readonly number[], epoch = 0): ClientMessage => ({
  kind: "fetch",
  epoch: weightEpoch(epoch),
  states: [{ groupId: A, have }],
});

/** Called from each implementation's own test file. */
export function draftServiceSuite(name: string, connect: Connect): void {
  sharingTests(name, connect);
  faultTests(name, connect);
  messageTests(name, connect);
  boundTests(name, connect);
}

function sharingTests(name: string, connect: Connect): void {
  test(`${name}: what one engine makes, the others draft`, async () => {
    const harness = await connect();
    const clients = [1, 2, 3].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const logs = [tokensOf(0, 300), tokensOf(1, 200), tokensOf(3, 50)];
    for (const [i, { client }] of clients.entries()) {
      client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
      client.append(A, { sampleIndex: i, offset: 0, tokens: present(logs[i], "a log each") });
    }
    await converge(harness, clients, logs);
    expect(harness.stats()).toMatchObject({ groups: 1, tokensTaken: 550, tokensRepeated: 0 });
    await harness.close();
  });

  test(`${name}: a response that moves to another engine goes on there`, async () => {
    const harness = await connect();
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const [first, second] = clients.map(({ client }) => client);
    const log = tokensOf(0, 120);
    for (const client of [first, second])
      client?.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    second?.append(A, { sampleIndex: 0, offset: 64, tokens: log.subarray(64) });
    first?.append(A, { sampleIndex: 0, offset: 0, tokens: log.subarray(0, 64) });
    await converge(harness, clients, [log]);
    await harness.close();
  });

  test(`${name}: repeats and overlaps change nothing`, async () => {
    const harness = await connect();
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const log = tokensOf(0, 100);
    for (const { client } of clients) {
      client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
      client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
      for (const from of [0, 0, 10, 50]) {
        client.append(A, {
          sampleIndex: 0,
          offset: from,
          tokens: log.subarray(from, 60 + from / 2),
        });
      }
      client.append(A, { sampleIndex: 0, offset: 0, tokens: log });
    }
    await converge(harness, clients, [log]);
    await until(harness, clients, () => harness.stats().tokensTaken >= 100);
    expect(harness.stats().tokensTaken).toBe(100);
    await harness.close();
  });

  test(`${name}: a log of many frames arrives whole`, async () => {
    const harness = await connect({ frameBytesMax: 4096 });
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const log = Int32Array.from({ length: 20_000 }, (_, i) => (i * i) % 1009);
    for (const { client } of clients) client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    clients[0]?.client.append(A, { sampleIndex: 0, offset: 0, tokens: log });
    const tail = log.subarray(5000, 5040);
    clients[0]?.client.append(A, { sampleIndex: 1, offset: 0, tokens: tail });
    await converge(harness, clients, [log, tail]);
    await harness.close();
  });

  test(`${name}: only what is lacking is fetched`, async () => {
    const harness = await connect();
    const log = tokensOf(0, 90);
    const { answers } = await exchange(harness, [
      HELLO,
      register(),
      update(0, log),
      fetchOf([]),
      fetchOf([60]),
      fetchOf([90]),
      fetchOf([95]),
    ]);
    const groups = answers
      .slice(3)
      .map((answer) => (answer.kind === "fetched" ? answer.groups : []));
    const deltas = groups.map(([group]) =>
      group?.deltas.map(({ offset, tokens }) => [offset, [...tokens]]),
    );
    expect(deltas).toEqual([[[0, [...log]]], [[60, [...log.subarray(60)]]], undefined, []]);
    expect(groups[3]?.[0]?.behind).toEqual([{ sampleIndex: 0, have: 90 }]);
    expect(groups.map(([group]) => group?.version)).toEqual([1, 1, undefined, 1]);
    await harness.close();
  });
}

function faultTests(name: string, connect: Connect): void {
  test(`${name}: connections cut again and again lose and repeat nothing`, async () => {
    const harness = await connect();
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const logs = [tokensOf(0, 400), tokensOf(1, 400)];
    for (const { client } of clients) client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    for (let at = 0; at < 400; at += 20) {
      for (const [i, { client }] of clients.entries()) {
        const tokens = present(logs[i], "a log each").subarray(at, at + 20);
        client.append(A, { sampleIndex: i, offset: at, tokens });
      }
      for (let i = 0; i < 5; i += 1) {
        for (const { client } of clients) client.poll(harness.nowMs());
        await harness.step();
      }
      harness.cut();
    }
    await converge(harness, clients, logs);
    expect(harness.stats().tokensTaken).toBe(800);
    expect(clients[0]?.client.stats().servers[0]?.losses).toBeGreaterThan(0);
    await harness.close();
  });

  test(`${name}: a server that began anew is told everything, by others where the writer is gone`, async () => {
    const harness = await connect();
    const clients = [1, 2, 3].map((id) =>
      newClient(harness, { s: harness.dial }, { id, limits: { restoreMs: 5 } }),
    );
    const logs = [tokensOf(0, 200), tokensOf(1, 150)];
    const [first, second, late] = clients;
    for (const one of [first, second]) {
      one?.client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    }
    for (const [sampleIndex, tokens] of logs.entries()) {
      first?.client.append(A, { sampleIndex, offset: 0, tokens });
    }
    await converge(harness, [present(first, "1"), present(second, "2")], logs);
    first?.client.close();
    await harness.stop();
    await harness.start();
    late?.client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    await converge(harness, [present(second, "2"), present(late, "3")], logs);
    expect(second?.client.stats().servers[0]).toMatchObject({ restarts: 1, isReady: true });
    await harness.close();
  });

  test(`${name}: a server away costs its groups the others' tokens, nobody else's`, async () => {
    const [near, far] = [await connect(), await connect()];
    const dials = { near: near.dial, far: far.dial };
    const clients = [1, 2].map((id) => newClient(near, dials, { id }));
    const names = Object.keys(dials);
    const ids = Array.from({ length: 40 }, (_, i) => groupId(`group-${i}`));
    const [here, there] = [0, 1].map((shard) =>
      present(
        ids.find((id) => shardOf(id, names) === shard),
        "both have groups",
      ),
    );
    const [a, b] = [present(here, "near"), present(there, "far")];
    for (const { client } of clients) {
      for (const id of [a, b]) client.registerGroup(id, { prompt: PROMPT, ttlMs: TTL_MS });
    }
    const log = tokensOf(0, 100);
    const write = (id: GroupId, from: number, to: number) =>
      clients[0]?.client.append(id, {
        sampleIndex: 0,
        offset: from,
        tokens: log.subarray(from, to),
      });
    for (const id of [a, b]) write(id, 0, 50);
    const both = { ...near, step: async () => void (await Promise.all([near.step(), far.step()])) };
    for (const id of [a, b]) await converge(both, clients, [log.subarray(0, 50)], id);
    await far.stop();
    await until(both, clients, () => clients.every((c) => c.client.stats().groupsDegraded === 1));
    for (const id of [a, b]) write(id, 50, 100);
    await converge(both, clients, [log], a);
    const reader = present(clients[1], "two clients");
    const old = JSON.stringify(expectedDrafts(b, [log.subarray(0, 50)]));
    expect(drafts(reader, 1, b)).toBe(old);
    expect(reader.client.stats()).toMatchObject({
      groupsDegraded: 1,
      asksDegraded: expect.any(Number),
    });
    expect(reader.client.stats().asksDegraded).toBeGreaterThan(0);
    await far.start();
    await converge(both, clients, [log], b);
    expect(reader.client.stats().groupsDegraded).toBe(0);
    await Promise.all([near.close(), far.close()]);
  });

  test(`${name}: a group dropped at the server while in use comes back`, async () => {
    const harness = await connect({ groupsMax: 1 });
    const client = newClient(harness, { s: harness.dial }, { limits: { reregisterMs: 1 } });
    client.client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    client.client.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 40) });
    await until(harness, [client], () => harness.stats().tokensTaken === 40);
    await exchange(harness, [HELLO, register(0, groupId("other"))]);
    expect(harness.stats()).toMatchObject({ groups: 1, groupsEvicted: 1 });
    await until(harness, [client], () => harness.stats().tokensTaken === 80);
    expect(client.client.stats().servers[0]?.groupsLost).toBe(1);
    expect(harness.stats().groupsEvicted).toBe(2);
    await harness.close();
  });
}

function messageTests(name: string, connect: Connect): void {
  test(`${name}: tokens ahead of the log are held, and taken when the hole closes`, async () => {
    const harness = await connect();
    const log = tokensOf(0, 30);
    const { answers } = await exchange(harness, [
      HELLO,
      register(),
      update(20, log.subarray(20)),
      update(10, log.subarray(10, 20)),
      update(10, log.subarray(10, 20)),
      update(0, log.subarray(0, 10)),
      fetchOf([]),
    ]);
    const kinds = answers
      .slice(2, 6)
      .map((answer) => (answer.kind === "updated" ? answer.refusals[0]?.reason : null));
    expect(kinds).toEqual(["held", "held", "held", undefined]);
    const last = answers[6];
    expect(last?.kind === "fetched" && [...(last.groups[0]?.deltas[0]?.tokens ?? [])]).toEqual([
      ...log,
    ]);
    await harness.close();
  });

  test(`${name}: tokens beyond the window are a gap that says what is there`, async () => {
    const harness = await connect({ windowTokens: 16 });
    const log = tokensOf(0, 40);
    const { answers } = await exchange(harness, [
      HELLO,
      register(),
      update(0, log.subarray(0, 5)),
      update(20, log.subarray(20)),
    ]);
    const refusal = { groupId: A, sampleIndex: 0, reason: "gap", have: 5 };
    expect(answers[3]).toMatchObject({ kind: "updated", refusals: [refusal] });
    expect(harness.stats()).toMatchObject({ gaps: 1, tokensTaken: 5 });
    await harness.close();
  });

  test(`${name}: an older epoch is refused, a newer one drops everything`, async () => {
    const harness = await connect();
    const log = tokensOf(0, 10);
    const { answers } = await exchange(harness, [
      HELLO,
      register(1),
      update(0, log, 1),
      update(0, log, 0),
      fetchOf([], 0),
      register(0),
      fetchOf([], 2),
    ]);
    const seen = answers
      .slice(1)
      .map((answer) => ("status" in answer ? `${answer.status} ${answer.epoch}` : ""));
    const stale = "stale_epoch 1";
    expect(seen).toEqual(["ok 1", "ok 1", stale, stale, stale, "ok 2"]);
    expect(answers[6]).toMatchObject({ kind: "fetched", groups: [], unknown: [A] });
    expect(harness.stats()).toMatchObject({ groups: 0, stale: 3, epochs: 2 });
    await harness.close();
  });

  test(`${name}: engines that advance share drafts of the new weights alone`, async () => {
    const harness = await connect();
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const [old, fresh] = [tokensOf(0, 60), tokensOf(1, 60)];
    for (const { client } of clients) client.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    const [first, second] = clients.map(({ client }) => client);
    first?.append(A, { sampleIndex: 0, offset: 0, tokens: old });
    await converge(harness, clients, [old]);
    second?.advanceEpoch(weightEpoch(1));
    second?.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    first?.append(A, { sampleIndex: 1, offset: 0, tokens: old });
    await until(harness, clients, () => harness.stats().epoch === 1);
    await until(harness, clients, () => (first?.stats().servers[0]?.stale ?? 0) > 0);
    first?.advanceEpoch(weightEpoch(1));
    first?.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    first?.append(A, { sampleIndex: 0, offset: 0, tokens: fresh });
    await converge(harness, clients, [fresh]);
    await harness.close();
  });

  test(`${name}: a group with another prompt is refused and drafts from its own engine`, async () => {
    const harness = await connect();
    const clients = [1, 2].map((id) => newClient(harness, { s: harness.dial }, { id }));
    const [right, wrong] = clients.map(({ client }) => client);
    right?.registerGroup(A, { prompt: PROMPT, ttlMs: TTL_MS });
    right?.append(A, { sampleIndex: 0, offset: 0, tokens: tokensOf(0, 50) });
    await until(harness, clients, () => harness.stats().tokensTaken === 50);
    const prompt = Int32Array.of(9);
    const own = tokensOf(1, 50);
    wrong?.registerGroup(A, { prompt, ttlMs: TTL_MS });
    wrong?.append(A, { sampleIndex: 1, offset: 0, tokens: own });
    await until(harness, clients, () => wrong?.stats().servers[0]?.groupsRefused === 1);
    const alone = expectedDrafts(A, [new Int32Array(0), own], prompt);
    expect(draftsOf(present(wrong, "two clients"), A, 2)).toEqual(alone);
    expect(harness.stats()).toMatchObject({ conflicts: 1, tokensTaken: 50 });
    await harness.close();
  });

  test(`${name}: a peer of another version is refused by that name`, async () => {
    const harness = await connect();
    const { problem } = await exchange(harness, [{ kind: "hello", protocolVersion: 99 }]);
    expect(problem).toContain("version: draft protocol 99; this server speaks 1");
    expect((await exchange(harness, [HELLO])).problem).toBeNull();
    await harness.close();
  });

  test(`${name}: a message before the hello, and a second hello, end the connection`, async () => {
    const harness = await connect();
    expect((await exchange(harness, [register()])).problem).toContain(
      "register_group before hello",
    );
    const again = await exchange(harness, [HELLO, HELLO, HELLO]);
    expect(again.problem).toContain("unexpected_message: a second hello");
    expect((await exchange(harness, [HELLO, register()])).problem).toBeNull();
    await harness.close();
  });
}

function boundTests(name: string, connect: Connect): void {
  test(`${name}: a group lives as long as it is used, and no longer`, async () => {
    const harness = await connect();
    await exchange(harness, [HELLO, register()]);
    for (let i = 0; i < 3; i += 1) {
      harness.advance(TTL_MS * 0.9);
      const { answers } = await exchange(harness, [HELLO, fetchOf([])]);
      expect(answers[1]).toMatchObject({ unknown: [] });
    }
    harness.advance(TTL_MS * 1.1);
    const { answers } = await exchange(harness, [HELLO, fetchOf([]), update(0, tokensOf(0, 5))]);
    expect(answers[1]).toMatchObject({ unknown: [A] });
    expect(answers[2]).toMatchObject({ refusals: [{ groupId: A, reason: "unknown", have: 0 }] });
    expect(harness.stats()).toMatchObject({ groups: 0, bytes: 0, groupsExpired: 1 });
    await harness.close();
  });

  test(`${name}: a group beyond its bytes is refused, and the next one is not`, async () => {
    const harness = await connect({ groupBytesMax: 4096 });
    const { answers } = await exchange(harness, [
      HELLO,
      register(),
      update(0, tokensOf(0, 400)),
      update(400, tokensOf(0, 900)),
      register(0, groupId("large"), new Int32Array(2000)),
      register(0, groupId("small")),
    ]);
    expect(answers[2]).toMatchObject({ refusals: [] });
    expect(answers[3]).toMatchObject({ refusals: [{ reason: "full", have: 400 }] });
    expect(answers.slice(4)).toMatchObject([{ status: "full" }, { status: "ok" }]);
    await harness.close();
  });

  test(`${name}: without room the group used longest ago goes`, async () => {
    const harness = await connect({ bytesMax: 8192 });
    const [b, c] = [groupId("b"), groupId("c")];
    await exchange(harness, [HELLO, register()]);
    harness.advance(1);
    await exchange(harness, [HELLO, register(0, b, new Int32Array(1000))]);
    harness.advance(1);
    const { answers } = await exchange(harness, [
      HELLO,
      fetchOf([]),
      register(0, c, new Int32Array(1000)),
      fetchOf([]),
      { kind: "fetch", epoch: weightEpoch(0), states: [{ groupId: b, have: [] }] },
    ]);
    expect(answers[3]).toMatchObject({ unknown: [] });
    expect(answers[4]).toMatchObject({ unknown: [b] });
    const { bytes, groupsEvicted } = harness.stats();
    expect(groupsEvicted).toBe(1);
    expect(bytes).toBeLessThanOrEqual(8192);
    await harness.close();
  });

  test(`${name}: a sample beyond the limit is refused`, async () => {
    const harness = await connect({ samplesMax: 2 });
    const deltas = [1, 2].map((sampleIndex) => ({
      sampleIndex,
      offset: 0,
      tokens: tokensOf(0, 3),
    }));
    const message = {
      kind: "update",
      epoch: weightEpoch(0),
      groups: [{ groupId: A, deltas }],
    } as const;
    const { answers } = await exchange(harness, [HELLO, register(), message]);
    expect(answers[2]).toMatchObject({ refusals: [{ sampleIndex: 2, reason: "full", have: 0 }] });
    await harness.close();
  });
}
