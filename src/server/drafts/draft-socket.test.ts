// What only a socket of the sidecar can do to a draft session: text, rubbish, peers that say nothing or do not read.

import { expect, test } from "bun:test";
import { decodeServerMessage, encodeClientMessage } from "../../../test/suite/draft-client.ts";
import { ManualClock, ManualTimers } from "../../../test/suite/manual-clock.ts";
import { NO_TELEMETRY } from "../../../test/suite/no-figures.ts";
import { FakeSocket } from "../../../test/suite/stream-client.ts";
import type { ClientMessage, ServerMessage } from "../../core/draft/service/message.ts";
import { DraftServer } from "../../core/draft/service/server.ts";
import { DraftSocketService } from "./draft-socket.ts";
import { EngineTelemetry } from "./engine-telemetry.ts";

function world(options: { connectionsMax?: number } = {}) {
  const clock = new ManualClock();
  const telemetry = new EngineTelemetry({ clock, drafts: true, notLossless: () => {} });
  const server = new DraftServer({ clock, instanceId: 7, leads: true, reports: telemetry });
  const timers = new ManualTimers();
  const { later } = timers;
  const service = new DraftSocketService({ server, later, ...options });
  const connect = () => {
    const frames: ServerMessage[] = [];
    const peer = new FakeSocket((data) => frames.push(decodeServerMessage(data as Uint8Array)));
    service.open(peer);
    return Object.assign(peer, { frames });
  };
  const say = (peer: FakeSocket, message: ClientMessage) =>
    service.message(peer, encodeClientMessage(message));
  return { server, telemetry, service, timers, connect, say };
}

const HELLO: ClientMessage = { kind: "hello", protocolVersion: 1, engine: "http://e:1" };

test("message: telemetry is kept under the engine's name and answered with a budget", () => {
  const { connect, say, telemetry } = world();
  const peer = connect();
  say(peer, HELLO);
  say(peer, { ...NO_TELEMETRY, steps: 3 });
  expect(peer.frames[1]?.kind).toBe("budget");
  expect(telemetry.figures()).toMatchObject([{ engine: "http://e:1", steps: 3 }]);
});

test("message: a peer that does not read is dropped, and so is one whose answer was", () => {
  const { connect, say } = world();
  const slow = connect();
  slow.bufferedBytes = 9 * 2 ** 20;
  say(slow, HELLO);
  expect(slow.closed?.code).toBe(1013);
  const lost = connect();
  lost.send = () => 0;
  say(lost, HELLO);
  expect(lost.closed?.code).toBe(1013);
});

test("open: one too many is refused, and a silent one is closed", () => {
  const { connect, timers } = world({ connectionsMax: 1 });
  const silent = connect();
  const second = connect();
  expect(second.closed?.code).toBe(1013);
  timers.run();
  expect(silent.closed?.code).toBe(1002);
});

test("end: every connection is closed", () => {
  const { connect, say, service } = world();
  const peers = [connect(), connect()];
  for (const peer of peers) say(peer, HELLO);
  service.end();
  expect(peers.map(({ closed }) => closed?.code)).toEqual([1001, 1001]);
});
