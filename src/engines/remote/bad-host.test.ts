// A host that misbehaves: the sidecar closes with the code for it, its worker has failed once, and nothing
// else comes of it.

import { expect, setDefaultTimeout, test } from "bun:test";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { CuttingProxy } from "../../../test/suite/cutting-proxy.ts";
import { open, QUICK, until } from "../../../test/suite/link-fixture.ts";
import { newSpec, runOf } from "../../../test/suite/worker-suite.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { WorkerEvent } from "../../core/rollout/worker.ts";
import { encodeHostMessage } from "./event-codec.ts";
import { encodeFrame } from "./frame-codec.ts";
import { LINK_LIMITS, LINK_PROTOCOL_VERSION } from "./limits.ts";
import type { FrameBody, WireEvent } from "./message.ts";

const WELCOME: FrameBody = {
  kind: "welcome",
  protocolVersion: LINK_PROTOCOL_VERSION,
  epoch: weightEpoch(0),
  modelId: "m",
  vocabularySize: 1000,
  workerName: "w",
  capacity: { slots: 1, kvTokens: 1000, contextTokens: 100, kvBytesPerToken: 8 },
  supports: new Map(),
  limits: LINK_LIMITS,
  weights: null,
};

// The machine may be busy.
setDefaultTimeout(30_000);

class BadHost {
  readonly url: string;
  readonly #sockets: WebSocketServer;
  /** The last connection. */
  #socket: WebSocket | null = null;
  closedWith: number | null = null;

  private constructor(sockets: WebSocketServer, welcome: FrameBody | null) {
    this.#sockets = sockets;
    this.url = `ws://127.0.0.1:${(sockets.address() as AddressInfo).port}`;
    sockets.on("connection", (socket) => {
      this.#socket = socket;
      socket.on("error", () => {});
      socket.on("close", (code) => {
        this.closedWith ??= code;
      });
      socket.once("message", () => {
        if (welcome !== null) this.send(encodeFrame({ ack: 0, body: welcome }));
      });
    });
  }

  static async listen(welcome: FrameBody | null): Promise<BadHost> {
    const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
    await new Promise((resolve) => sockets.once("listening", resolve));
    return new BadHost(sockets, welcome);
  }

  send(frame: Uint8Array | string): void {
    this.#socket?.send(frame, () => {});
  }

  events(...events: WireEvent[]): void {
    const payload = encodeHostMessage({ kind: "events", epoch: weightEpoch(0), events });
    this.send(encodeFrame({ ack: 0, body: { kind: "data", seq: 1, more: false, payload } }));
  }

  async close(): Promise<void> {
    this.#socket?.terminate();
    await new Promise<void>((resolve) => this.#sockets.close(() => resolve()));
  }
}

const tokens = (list: number[], offset = 0): WireEvent => ({
  kind: "tokens",
  run: 1,
  offset,
  tokens: Int32Array.from(list),
  logprobs: new Float32Array(list.length),
  top: null,
});

/** As many as the request may have. */
const FULL = Array.from({ length: 32 }, () => 5);

const BAD: [name: string, code: number, send: (host: BadHost) => void][] = [
  ["a text frame", 1003, (host) => host.send("hello")],
  ["bytes that are no frame", 1007, (host) => host.send(Uint8Array.of(10, 9))],
  ["a token out of vocabulary", 1007, (host) => host.events(tokens([5, 1000]))],
  ["more tokens than were asked for", 1007, (host) => host.events(tokens([1, 2], 31))],
  ["tokens after a hole", 1007, (host) => host.events(tokens([5], 3))],
  [
    "a logprob that is none",
    1007,
    (host) => host.events({ ...tokens([5]), logprobs: Float32Array.of(Number.NaN) } as WireEvent),
  ],
  [
    "an alternative out of vocabulary",
    1007,
    (host) => {
      const top = { count: 1, tokens: Int32Array.of(1000), logprobs: new Float32Array(1) };
      host.events({ ...tokens([5]), top } as WireEvent);
    },
  ],
  [
    "a chunk that ends before it is used up",
    1007,
    (host) => host.events(tokens([5]), { kind: "chunk_done", run: 1, finish: null }),
  ],
  [
    "a response that goes on after its last token",
    1007,
    (host) => host.events(tokens(FULL), { kind: "chunk_done", run: 1, finish: null }),
  ],
  [
    "a response that is too long before it is",
    1007,
    (host) => host.events(tokens([5]), { kind: "chunk_done", run: 1, finish: "length" }),
  ],
  ["a frame beyond the limit", 1009, (host) => host.send(new Uint8Array(2 ** 21))],
  ["a second welcome", 1002, (host) => host.send(encodeFrame({ ack: 0, body: WELCOME }))],
  [
    "data after a hole",
    1002,
    (host) => {
      const body = { kind: "data", seq: 9, more: false, payload: new Uint8Array(0) } as const;
      host.send(encodeFrame({ ack: 0, body }));
    },
  ],
  [
    "an acknowledgement of what was not sent",
    1007,
    (host) => host.send(encodeFrame({ ack: 77, body: { kind: "heartbeat" } })),
  ],
];

for (const [name, code, send] of BAD) {
  test(`link: ${name} closes with ${code}, and the worker has failed once`, async () => {
    const host = await BadHost.listen(WELCOME);
    const worker = await open(host.url);
    const events: WorkerEvent[] = [];
    worker.listen((_, some) => events.push(...some));
    worker.send([runOf(newSpec(1))]);
    send(host);
    await until(() => events.length > 0 && host.closedWith !== null, "the end");
    expect(events.map((event) => event.kind)).toEqual(["failed"]);
    expect(host.closedWith).toBe(code);
    await worker.close();
    await host.close();
  });
}

test("link: a host that falls silent is given up, and dialled again until the limit", async () => {
  const host = await BadHost.listen(WELCOME);
  const limits = { ...QUICK, heartbeatMs: 20, silenceMsMax: 150, resumeMsMax: 500 };
  const worker = await open(host.url, { limits });
  const events: WorkerEvent[] = [];
  worker.listen((_, some) => events.push(...some));
  await until(() => worker.linkStats().reconnects > 0, "it dials again");
  await host.close();
  await until(() => events.length > 0, "the end");
  expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("is lost") }]);
});

test("link: a control request that a cut leaves behind is answered with 502", async () => {
  const host = await BadHost.listen(WELCOME);
  const worker = await open(host.url, { limits: { ...QUICK, resumeMsMax: 10 } });
  const request = { method: "POST", path: "/pause", query: {}, body: null } as const;
  const answer = worker.control({ ...request, nextEpoch: weightEpoch(1) });
  await host.close();
  expect((await answer).status).toBe(502);
});

test("link: a worker can be closed while its host accepts connections and stays silent", async () => {
  const host = await BadHost.listen(WELCOME);
  const mute = createServer();
  await new Promise<void>((resolve) => mute.listen(0, "127.0.0.1", resolve));
  const held: Socket[] = [];
  mute.on("connection", (socket) => held.push(socket));
  let port = Number(new URL(host.url).port);
  const proxy = await CuttingProxy.listen(() => port);
  const worker = await open(`ws://127.0.0.1:${proxy.port}`);
  port = (mute.address() as AddressInfo).port;
  proxy.cut();
  await until(() => held.length > 0, "it dials again");
  await worker.close();
  for (const socket of held) socket.destroy();
  await proxy.close();
  await new Promise<void>((resolve) => mute.close(() => resolve()));
  await host.close();
});

test("openLinkWorker: a URL of another kind, and a host that does not answer, are distinguished", async () => {
  await expect(open("http://127.0.0.1:1")).rejects.toMatchObject({ code: "usage" });
  const limits = { ...QUICK, openMsMax: 20 };
  await expect(open("ws://127.0.0.1:1", { limits })).rejects.toMatchObject({
    code: "worker_failed",
  });
});
