// What only a socket of the sidecar can do to a draft session: text, rubbish, peers that say nothing or do not read.

import { expect, test } from "bun:test";
import { decodeServerMessage, encodeClientMessage } from "../../../test/suite/draft-client.ts";
import { ManualClock } from "../../../test/suite/manual-clock.ts";
import { weightEpoch } from "../../core/base/ids.ts";
import type { ClientMessage, ServerMessage } from "../../core/draft/service/message.ts";
import { DraftServer } from "../../core/draft/service/server.ts";
import type { Socket } from "../http.ts";
import { DraftSocketService } from "./draft-socket.ts";
import { EngineTelemetry } from "./engine-telemetry.ts";

class Peer implements Socket {
  readonly frames: ServerMessage[] = [];
  closed: readonly [number, string] | null = null;
  bufferedBytes = 0;
  /** Result of `send`. */
  sends = 1;

  send(data: string | Uint8Array): number {
    if (typeof data !== "string") this.frames.push(decodeServerMessage(data));
    return this.sends;
  }

  getBufferedAmount(): number {
    return this.bufferedBytes;
  }

  close(code: number, reason: string): void {
    this.closed ??= [code, reason];
  }
}

function world(options: { connectionsMax?: number } = {}) {
  const clock = new ManualClock();
  const server = new DraftServer({ clock, instanceId: 7, leads: true });
  const telemetry = new EngineTelemetry({ clock, drafts: true, notLossless: () => {} });
  const timers = new Set<() => void>();
  const service = new DraftSocketService({
    server,
    reports: telemetry,
    later: (act) => {
      timers.add(act);
      return () => timers.delete(act);
    },
    ...options,
  });
  const connect = () => {
    const peer = new Peer();
    service.open(peer);
    return peer;
  };
  const say = (peer: Peer, message: ClientMessage) =>
    service.message(peer, encodeClientMessage(message));
  return { server, telemetry, service, timers, connect, say };
}

const HELLO: ClientMessage = { kind: "hello", protocolVersion: 1, engine: "http://e:1" };
const TELEMETRY: ClientMessage = {
  kind: "telemetry",
  epoch: weightEpoch(0),
  running: 1,
  waiting: 0,
  kvUsage: 0,
  isLossless: true,
  steps: 3,
  stepUs: 0,
  proposeUs: 0,
  drafted: 0,
  accepted: 0,
  traced: 0,
  tracedElsewhere: 0,
  faults: 0,
  stepError: 0,
};

test("message: telemetry is kept under the engine's name and answered with a budget", () => {
  const { connect, say, telemetry } = world();
  const peer = connect();
  say(peer, HELLO);
  say(peer, TELEMETRY);
  expect(peer.frames[1]?.kind).toBe("budget");
  expect(telemetry.figures()).toMatchObject([{ engine: "http://e:1", steps: 3 }]);
});

test("message: a peer that does not read is dropped, and so is one whose answer was", () => {
  const { connect, say } = world();
  const slow = connect();
  slow.bufferedBytes = 9 * 2 ** 20;
  say(slow, HELLO);
  expect(slow.closed?.[0]).toBe(1013);
  const lost = connect();
  lost.sends = 0;
  say(lost, HELLO);
  expect(lost.closed?.[0]).toBe(1013);
});

test("open: one too many is refused, and a silent one is closed", () => {
  const { connect, timers } = world({ connectionsMax: 1 });
  const silent = connect();
  const second = connect();
  expect(second.closed?.[0]).toBe(1013);
  for (const act of timers) act();
  expect(silent.closed?.[0]).toBe(1002);
});

test("end: every connection is closed", () => {
  const { connect, say, service } = world();
  const peers = [connect(), connect()];
  for (const peer of peers) say(peer, HELLO);
  service.end();
  expect(peers.map(({ closed }) => closed?.[0])).toEqual([1001, 1001]);
});
