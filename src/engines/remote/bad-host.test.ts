// A host that misbehaves: the sidecar closes with the code for it, its worker has failed once, and nothing
// else comes of it.

import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import type { AddressInfo } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { closeAll, eventsOf, open, QUICK, until } from "../../../test/suite/link-fixture.ts";
import { newSpec, runOf } from "../../../test/suite/simulated-runs.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import { encodeHostMessage } from "./codec.ts";
import { LINK_LIMITS, LINK_PROTOCOL_VERSION } from "./limits.ts";
import type { HostMessage, WireEvent } from "./message.ts";

setDefaultTimeout(180_000);

const WELCOME: HostMessage = {
  kind: "welcome",
  protocolVersion: LINK_PROTOCOL_VERSION,
  hostRun: "bad",
  epoch: weightEpoch(0),
  vocabularySize: 1000,
  capacity: { slots: 1, kvTokens: 1000, contextTokens: 100, kvBytesPerToken: 8 },
  limits: LINK_LIMITS,
  weights: null,
};

afterEach(closeAll);

class BadHost {
  readonly url: string;
  readonly #sockets: WebSocketServer;
  /** The last connection. */
  #socket: WebSocket | null = null;
  closedWith: number | null = null;

  private constructor(sockets: WebSocketServer, welcome: HostMessage | null) {
    this.#sockets = sockets;
    this.url = `ws://127.0.0.1:${(sockets.address() as AddressInfo).port}`;
    sockets.on("connection", (socket) => {
      this.#socket = socket;
      socket.on("error", () => {});
      socket.on("close", (code) => {
        this.closedWith ??= code;
      });
      socket.once("message", () => {
        if (welcome !== null) this.send(encodeHostMessage(welcome));
      });
    });
  }

  static async listen(welcome: HostMessage | null): Promise<BadHost> {
    const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
    await new Promise((resolve) => sockets.once("listening", resolve));
    return new BadHost(sockets, welcome);
  }

  send(frame: Uint8Array | string): void {
    this.#socket?.send(frame, () => {});
  }

  events(...events: WireEvent[]): void {
    this.send(encodeHostMessage({ kind: "events", epoch: weightEpoch(0), events }));
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

/** As many tokens as the request may have. */
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
  ["a second welcome", 1002, (host) => host.send(encodeHostMessage(WELCOME))],
];

test.each(BAD)("link: %s closes with %d, and the worker has failed once", async (_, code, send) => {
  const host = await BadHost.listen(WELCOME);
  const worker = await open(host.url, { limits: { messageBytesMax: 2 ** 20 } });
  const events = eventsOf(worker);
  worker.send([runOf(newSpec(1))]);
  send(host);
  await until(() => events.length > 0 && host.closedWith !== null, "the end");
  expect(events.map((event) => event.kind)).toEqual(["failed"]);
  expect(host.closedWith).toBe(code);
  await host.close();
});

test("link: a host that falls silent is given up, and its requests with it", async () => {
  const host = await BadHost.listen(WELCOME);
  const worker = await open(host.url, { limits: { silenceMsMax: 150 } });
  const events = eventsOf(worker);
  const answer = worker.perform({ kind: "wake", tags: [] }, weightEpoch(1));
  await until(() => events.length > 0, "the end");
  expect(events).toEqual([{ kind: "failed", message: expect.stringContaining("silent for") }]);
  expect((await answer).status).toBe(502);
  await host.close();
});

test("link: a worker can be closed while its host accepts connections and stays silent", async () => {
  const host = await BadHost.listen(WELCOME);
  const worker = await open(host.url);
  await worker.close();
  await host.close();
});

test("openLinkWorker: a URL of another kind, and a host that does not answer, are distinguished", async () => {
  await expect(open("http://127.0.0.1:1")).rejects.toMatchObject({ code: "usage" });
  const limits = { ...QUICK, openMsMax: 20 };
  await expect(open("ws://127.0.0.1:1", { limits })).rejects.toMatchObject({
    code: "worker_failed",
  });
});
