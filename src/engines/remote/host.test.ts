// What a host refuses, with which close code, and that it serves the next sidecar as if nothing had been.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { WebSocket } from "ws";
import { SimulatedWorker } from "../../../test/faults/simulated/worker.ts";
import {
  closeAll,
  eventsOf,
  listen,
  open,
  openOn,
  QUICK,
  refused,
  settled,
  tokensIn,
  turn,
  until,
} from "../../../test/suite/link-fixture.ts";
import { newSimulated, newSpec, runOf, tokensOf } from "../../../test/suite/simulated-runs.ts";
import { present } from "../../core/base/assert.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { WorkerStats } from "../../core/rollout/worker.ts";
import { decodeHostMessage, encodeSidecarMessage } from "./codec.ts";
import type { LinkHost, LinkHostEvent } from "./host.ts";
import { LINK_LIMITS, LINK_PATH, LINK_PROTOCOL_VERSION } from "./limits.ts";
import type { Hello, HostMessage, SidecarMessage, WireCommand } from "./message.ts";

setDefaultTimeout(180_000);

afterEach(closeAll);

const HELLO: Hello = {
  kind: "hello",
  protocolVersion: LINK_PROTOCOL_VERSION,
  token: "",
  kvBytesMax: LINK_LIMITS.kvBytesMax,
  sidecarId: "raw",
  sidecarName: "a raw sidecar",
};

/** Sends what the test says, and nothing else. */
class Raw {
  readonly socket: WebSocket;
  readonly messages: HostMessage[] = [];
  readonly closed: Promise<{ code: number; reason: string }>;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.on("message", (data: Uint8Array) => {
      const decoded = decodeHostMessage(data);
      if (decoded.kind === "ok") this.messages.push(decoded.message);
    });
    socket.on("error", () => {});
    this.closed = new Promise((resolve) =>
      socket.once("close", (code, reason) => resolve({ code, reason: reason.toString() })),
    );
  }

  static async open(host: LinkHost, headers: Record<string, string> = {}): Promise<Raw> {
    const raw = new Raw(new WebSocket(host.url + LINK_PATH, { headers }));
    await new Promise((resolve) => raw.socket.once("open", resolve));
    return raw;
  }

  message(message: SidecarMessage): void {
    this.socket.send(encodeSidecarMessage(message), () => {});
  }

  commands(...commands: WireCommand[]): void {
    this.message({ kind: "commands", commands });
  }
}

/** A good sidecar is served: the host, and its worker, have taken no harm. */
async function expectServing(host: LinkHost, simulated: SimulatedWorker): Promise<void> {
  const worker = await openOn(simulated, host.url);
  const events = eventsOf(worker);
  worker.send([runOf(newSpec(1), { chunkTokens: 4 })]);
  await settled(worker);
  for (let i = 0; i < 5; i += 1) simulated.step();
  await settled(worker);
  expect(tokensIn(events, 1)).toEqual([...tokensOf(newSpec(1), 0, 4)]);
}

const RUN: Extract<WireCommand, { kind: "run" }> = {
  kind: "run",
  run: 1,
  request: newSpec(7),
  output: new Int32Array(0),
  chunkTokens: 4,
  priority: "low",
  kv: null,
  draft: null,
};

type Fault = [name: string, code: number, reason: RegExp, send: (raw: Raw) => void];

const partAlone: SidecarMessage = {
  kind: "kv_part",
  part: { offset: 5, total: 9, bytes: new Uint8Array(1) },
};

const BAD: Fault[] = [
  ["a text frame", 1003, /^unexpected_text/, (raw) => raw.socket.send("hello")],
  ["bytes that are no frame", 1007, /^undecodable/, (raw) => raw.socket.send(Uint8Array.of(10, 9))],
  ["an empty frame", 1007, /^undecodable/, (raw) => raw.socket.send(new Uint8Array(0))],
  ["commands before the hello", 1002, /before the hello/, (raw) => raw.commands(RUN)],
  [
    "another version",
    1008,
    /^version: .* 9, not 7/,
    (raw) => raw.message({ ...HELLO, protocolVersion: 9 }),
  ],
];

const AFTER_HELLO: Fault[] = [
  [
    "a frame beyond the limit",
    1009,
    /^/,
    (raw) => raw.socket.send(new Uint8Array(2 ** 21), () => {}),
  ],
  ["a second hello", 1002, /second hello/, (raw) => raw.message(HELLO)],
  [
    "KV whose parts are out of order",
    1007,
    /its first one is missing/,
    (raw) => raw.message(partAlone),
  ],
  [
    "a request that runs already",
    1002,
    /runs already/,
    (raw) => raw.commands(RUN, { ...RUN, run: 2 }),
  ],
];

test.each([...BAD, ...AFTER_HELLO])(
  "host: %s closes with %d, and the next sidecar is served",
  async (name, code, reason, send) => {
    const simulated = newSimulated();
    const host = await listen(simulated, { limits: { ...QUICK, messageBytesMax: 2 ** 20 } });
    const raw = await Raw.open(host);
    if (AFTER_HELLO.some(([other]) => other === name)) {
      raw.message(HELLO);
      await until(() => raw.messages.some(({ kind }) => kind === "welcome"), "a welcome");
    }
    send(raw);
    const closed = await raw.closed;
    expect(closed.code).toBe(code);
    expect(closed.reason).toMatch(reason);
    await expectServing(host, simulated);
  },
);

test("host: a browser is not served", async () => {
  const simulated = newSimulated();
  const host = await listen(simulated);
  const raw = await Raw.open(host, { Origin: "http://example.com" });
  expect((await raw.closed).code).toBe(1008);
  await expectServing(host, simulated);
});

test("host: another token is refused, the right one is taken", async () => {
  const host = await listen(newSimulated(), { token: "secret" });
  await expect(open(host.url)).rejects.toMatchObject({ code: "unauthorized" });
  await expect(open(host.url, { token: "Secret" })).rejects.toMatchObject({ code: "unauthorized" });
  await open(host.url, { token: "secret" });
});

test("host: to each sidecar the worker's counts begin at nothing", async () => {
  const simulated = newSimulated();
  const host = await listen(simulated);
  const steps: number[] = [];
  for (const id of [1, 2]) {
    const worker = await open(host.url);
    let stats: WorkerStats | null = null;
    worker.listen((_, events) => {
      for (const event of events) if (event.kind === "stats") stats = event.stats;
    });
    worker.send([runOf(newSpec(id))]);
    await settled(worker);
    while (!simulated.isIdle) simulated.step();
    await until(() => (stats?.running ?? 1) === 0, "the last step is told");
    const { steps: made, outputTokens } = present<WorkerStats>(stats, "it was told");
    expect(outputTokens).toBeGreaterThan(0);
    steps.push(made);
    await worker.close();
    await until(() => !simulated.isIdle, "the host asks its worker");
    simulated.step();
  }
  expect(steps[1]).toBeLessThan(2 * (steps[0] ?? 0));
});

test("host: a session ends with its connection, and the worker is released", async () => {
  const simulated = newSimulated();
  const host = await listen(simulated);
  const raw = await Raw.open(host);
  raw.message(HELLO);
  raw.commands(RUN);
  await until(() => !simulated.isIdle, "the run has come");
  simulated.step();
  raw.socket.terminate();
  await until(() => simulated.kvTokensUsed === 0, "all is released");
  await expectServing(host, simulated);
});

test("host: a sidecar that takes nothing is dropped as slow, and the worker stops", async () => {
  const simulated = newSimulated(0, 1000);
  const told: LinkHostEvent[] = [];
  const host = await listen(simulated, {
    limits: { ...QUICK, bufferBytesMax: 20_000, silenceMsMax: 60_000 },
    events: (event) => told.push(event),
  });
  const raw = await Raw.open(host);
  raw.message(HELLO);
  raw.commands({ ...RUN, chunkTokens: 32 });
  await until(() => !simulated.isIdle, "the run has come");
  const { promise, resolve } = Promise.withResolvers<void>();
  raw.socket.once("close", resolve);
  raw.socket.pause();
  // What the two sockets hold, and then what the host keeps.
  for (let i = 0; told.at(-1)?.kind !== "session_ended"; i += 1) {
    simulated.step();
    if (simulated.isIdle) simulated.send([runOf(newSpec(100 + i), { chunkTokens: 32 })]);
    if (i % 100 === 0) await turn();
  }
  raw.socket.resume();
  await promise;
  expect(told.at(-1)).toMatchObject({ reason: expect.stringMatching(/^slow_consumer/) });
  await expectServing(host, simulated);
});

/** A host, and a worker of it whose events are kept. */
async function opened() {
  const simulated = newSimulated();
  const host = await listen(simulated);
  const worker = await open(host.url);
  return { simulated, host, worker, events: eventsOf(worker) };
}

test("host: a close tells the sidecar to go, whose worker has failed once", async () => {
  const { host, worker, events } = await opened();
  await host.close();
  await until(() => events.length > 0, "the worker has failed");
  expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("draining") }]);
  worker.send([runOf(newSpec(1))]);
});

test("link: a sidecar that counts from lower gets a failure in its own epoch", async () => {
  const { capacity, workerId } = newSimulated();
  const epoch = weightEpoch(9);
  const simulated = new SimulatedWorker({ workerId, capacity, epoch, lengthOf: () => 1 });
  const host = await listen(simulated, { epoch });
  const worker = await open(host.url);
  expect(worker.epoch).toBe(epoch);
  const heard: [number, string][] = [];
  worker.listen((of, events) => heard.push([of, events.at(-1)?.kind ?? ""]));
  worker.send([{ kind: "advance", epoch: weightEpoch(0) }]);
  // The command is still on its way.
  simulated.step();
  await settled(worker);
  await host.close();
  await until(() => heard.length > 1, "the worker has failed");
  expect(heard).toEqual([
    [9, "stats"],
    [0, "failed"],
  ]);
});

test("host: a worker that fails ends its session at once, and the one in its place is served", async () => {
  const { simulated, host, worker, events } = await opened();
  worker.send([runOf(newSpec(1))]);
  await settled(worker);
  simulated.kill();
  await until(() => events.length > 0, "the failure");
  expect(events).toEqual([{ kind: "failed", message: "killed" }]);
  await refused("worker_failed: killed", host.url, { limits: { openMsMax: 50 } });
  const waiting = open(host.url);
  const next = newSimulated();
  host.replace(next, weightEpoch(0));
  await (await waiting).close();
  await expectServing(host, next);
});

test("host: a worker that does not release a session has failed", async () => {
  const simulated = newSimulated();
  const told: LinkHostEvent[] = [];
  const host = await listen(simulated, {
    limits: { ...QUICK, clearMsMax: 30 },
    events: (event) => told.push(event),
  });
  await (await open(host.url)).close();
  // It never steps.
  await until(() => told.at(-1)?.kind === "worker_failed", "the failure");
  const next = newSimulated();
  host.replace(next, weightEpoch(0));
  await expectServing(host, next);
});
