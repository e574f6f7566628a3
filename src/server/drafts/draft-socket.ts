// The draft service (docs/PROTOCOL.md) on the sidecar's own port: one session for each connection. It decides which
// connections end, and with which close code. It never waits for a peer: one that does not read loses its connection.

import type { Later } from "../../core/base/clock.ts";
import type { DraftPeer, DraftServer } from "../../core/draft/service/server.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import { decodeClientMessage, encodeServerMessage } from "../../proto/draft-codec.ts";
import type { Socket, SocketService } from "../http.ts";

export interface DraftSocketOptions {
  readonly server: DraftServer;
  readonly later: Later;
  readonly connectionsMax?: number;
}

interface Peer extends DraftPeer {
  readonly cancelDeadline: () => void;
  isClosing: boolean;
}

const REFUSAL_CODES = {
  version: CLOSE.version,
  unexpected_message: CLOSE.protocol,
  invalid_message: CLOSE.invalid,
} as const;

const CONNECTIONS_MAX = 1024;
/** Bytes that may wait for one peer to read them. */
const SEND_QUEUE_BYTES = 8 * 2 ** 20;
/** Time for a peer to send its hello. */
const HELLO_MS_MAX = 15_000;

export class DraftSocketService implements SocketService {
  readonly #options: DraftSocketOptions;
  readonly #peers = new Map<Socket, Peer>();

  constructor(options: DraftSocketOptions) {
    this.#options = options;
  }

  get connections(): number {
    return this.#peers.size;
  }

  open(socket: Socket): void {
    const { later, connectionsMax = CONNECTIONS_MAX } = this.#options;
    const cancelDeadline = later(() => {
      if (peer.engine === null) this.#end(socket, CLOSE.protocol, "no hello in time");
    }, HELLO_MS_MAX);
    const peer: Peer = { engine: null, cancelDeadline, isClosing: false };
    this.#peers.set(socket, peer);
    if (this.#peers.size > connectionsMax) {
      this.#end(socket, CLOSE.tryLater, `more than ${connectionsMax} connections`);
    }
  }

  message(socket: Socket, data: string | Uint8Array): void {
    const peer = this.#peers.get(socket);
    if (peer === undefined || peer.isClosing) return;
    if (typeof data === "string") {
      this.#end(socket, CLOSE.text, "unexpected_text: frames are binary");
      return;
    }
    const decoded = decodeClientMessage(data);
    if (decoded.kind !== "ok") {
      this.#end(socket, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
      return;
    }
    const answer = this.#options.server.receive(peer, decoded.message);
    if (answer.kind === "refuse") {
      this.#end(socket, REFUSAL_CODES[answer.reason], `${answer.reason}: ${answer.problem}`);
      return;
    }
    const sent = socket.send(encodeServerMessage(answer));
    const waiting = socket.getBufferedAmount();
    // A frame that was dropped would leave the peer with an answer short.
    if (sent === 0 || waiting > SEND_QUEUE_BYTES) {
      this.#end(socket, CLOSE.tryLater, `slow_consumer: ${waiting} bytes wait to be read`);
    }
  }

  close(socket: Socket): void {
    this.#peers.get(socket)?.cancelDeadline();
    this.#peers.delete(socket);
  }

  drain(): void {}

  /** Closes every connection: the sidecar stops. */
  end(): void {
    for (const socket of [...this.#peers.keys()]) this.#end(socket, CLOSE.goingAway, "draining");
  }

  #end(socket: Socket, code: number, reason: string): void {
    const peer = this.#peers.get(socket);
    if (peer === undefined || peer.isClosing) return;
    peer.isClosing = true;
    socket.close(code, closeReason(reason));
  }
}
