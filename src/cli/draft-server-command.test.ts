// The command as a process: it says where it listens, serves, and leaves when told to.

import { expect, test } from "bun:test";
import { WebSocket } from "ws";
import { ToolProcess } from "../../test/faults/process.ts";
import { decodeServerMessage, encodeClientMessage } from "../../test/suite/draft-client.ts";
import { DRAFT_PROTOCOL_VERSION } from "../core/draft/service/limits.ts";

test("draft-server: prints its address, serves, and closes its connections at Ctrl-C", async () => {
  const server = new ToolProcess(["draft-server", "--port", "0"]);
  const url = await server.listens();
  expect(server.text).toMatch(/^draft server on ws:\/\/127\.0\.0\.1:\d+\/v1\/draft$/);
  const socket = new WebSocket(url);
  const closed = new Promise<number>((resolve) => socket.once("close", resolve));
  const answer = new Promise<Uint8Array>((resolve) => socket.once("message", resolve));
  await new Promise((resolve) => socket.once("open", resolve));
  socket.send(encodeClientMessage({ kind: "hello", protocolVersion: DRAFT_PROTOCOL_VERSION }));
  expect(decodeServerMessage(await answer)).toMatchObject({ kind: "welcome" });
  server.signal("SIGINT");
  expect(await closed).toBe(1001);
  expect(await server.exited).toBe(0);
});
