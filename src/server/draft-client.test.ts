// The link's own edges: peers that are no draft servers, and one that does not read.

import { expect, test } from "bun:test";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { type WebSocket, WebSocketServer } from "ws";
import { groupId, weightEpoch } from "../base/ids.ts";
import type { Link } from "../draft/service/link.ts";
import type { ClientMessage } from "../draft/service/message.ts";
import { socketDial } from "./draft-client.ts";

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Accepts one connection and hands it over. */
async function accept(): Promise<{
  url: string;
  socket: Promise<WebSocket>;
  close(): Promise<void>;
}> {
  const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
  await new Promise((resolve) => sockets.once("listening", resolve));
  const socket = new Promise<WebSocket>((resolve) => sockets.once("connection", resolve));
  const { port } = sockets.address() as AddressInfo;
  const close = async () => {
    (await socket).terminate();
    await new Promise((resolve) => sockets.close(resolve));
  };
  return { url: `ws://127.0.0.1:${port}`, socket, close };
}

function dialled(url: string, options: { sendQueueBytes?: number; frameBytesMax?: number } = {}) {
  const opened = Promise.withResolvers<void>();
  const closed = Promise.withResolvers<string>();
  const link: Link = socketDial({ url, ...options })({
    opened: opened.resolve,
    received: () => {},
    closed: closed.resolve,
  });
  return { link, opened: opened.promise, closed: closed.promise };
}

const BAD: [string, Uint8Array | string, number, string][] = [
  ["a text frame", "hello", 1003, "unexpected_text"],
  ["an empty frame", new Uint8Array(0), 1007, "invalid_message: the frame has no body"],
  ["a frame that is not protobuf", Uint8Array.of(0x0a, 0xff), 1007, "undecodable"],
  ["an oversized frame", new Uint8Array(2000), 1009, "Max payload size exceeded"],
];

for (const [what, frame, code, problem] of BAD) {
  test(`link: ${what} from the server ends it with ${code}`, async () => {
    const server = await accept();
    const { closed } = dialled(server.url, { frameBytesMax: 1000 });
    const socket = await server.socket;
    const seen = new Promise<number>((resolve) => socket.once("close", resolve));
    socket.send(frame);
    expect(await closed).toStartWith(problem);
    expect(await seen).toBe(code);
    await server.close();
  });
}

test("link: nobody listening is told, and a peer that is no WebSocket too", async () => {
  expect(await dialled("ws://127.0.0.1:1/v1/draft").closed).toContain("ECONNREFUSED");
  const peers = new Set<Socket>();
  const server = createServer((peer) => {
    peers.add(peer);
    peer.end("220 mail.example ESMTP\r\n");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  expect(await dialled(`ws://127.0.0.1:${port}/v1/draft`).closed).not.toBe("");
  for (const peer of peers) peer.destroy();
  server.close();
});

test("link: a server that does not read makes it full, and nothing more is queued", async () => {
  const server = await accept();
  const { link, opened } = dialled(server.url, { sendQueueBytes: 1 << 20 });
  const socket = await server.socket;
  await opened;
  socket.pause();
  const deltas = [{ sampleIndex: 0, offset: 0, tokens: new Int32Array(50_000) }];
  const message: ClientMessage = {
    kind: "update",
    epoch: weightEpoch(0),
    groups: [{ groupId: groupId("a"), deltas }],
  };
  let sent = 0;
  while (link.send(message) === "sent") {
    sent += 1;
    await turn();
  }
  expect(link.send(message)).toBe("full");
  expect(sent).toBeLessThan(200);
  let arrived = 0;
  socket.on("message", () => {
    arrived += 1;
  });
  socket.resume();
  while (link.send(message) === "full") await turn();
  while (arrived < sent + 1) await turn();
  await server.close();
});

test("link: closed by its owner, it sends nothing more", async () => {
  const server = await accept();
  const { link, opened } = dialled(server.url);
  await opened;
  link.close();
  link.close();
  expect(link.send({ kind: "hello", protocolVersion: 1 })).toBe("closed");
  const socket = await server.socket;
  if (socket.readyState !== socket.CLOSED)
    await new Promise((resolve) => socket.once("close", resolve));
  await server.close();
});
