// A draft server on a socket: WebSocket connections, each with a session of its own, all on one
// DraftServer. Decides which connections end, and with which close code. Keeps no group and no token,
// and never waits for a peer: one that does not read loses its connection.

import type { AddressInfo } from "node:net";
import { type RawData, type WebSocket, WebSocketServer } from "ws";
import { AppError } from "../base/errors.ts";
import type { DraftServer } from "../draft/service/server.ts";
import { DraftSession } from "../draft/service/session.ts";
import { CLOSE, closeReason } from "../proto/close-codes.ts";
import { decodeClientMessage, encodeServerMessage } from "../proto/draft-codec.ts";

export const DRAFT_PATH = "/v1/draft";

export interface DraftServiceOptions {
  readonly server: DraftServer;
  readonly host: string;
  /** 0: any free one. */
  readonly port: number;
  readonly connectionsMax?: number;
  /** Bytes that may wait for one peer to read them. */
  readonly sendQueueBytes?: number;
  /** A peer has this long to say hello, and to answer a ping. */
  readonly silenceMsMax?: number;
  /** A peer has this long to answer a close. */
  readonly closeMsMax?: number;
}

/** Counters since the service began; `connections` as of now. */
export interface DraftServiceStats {
  readonly connections: number;
  readonly accepted: number;
  readonly framesReceived: number;
  readonly bytesReceived: number;
  readonly bytesSent: number;
  /** Connections that the service ended, by close code. */
  readonly closed: Readonly<Record<number, number>>;
  /** Connections that broke: cut, reset, an oversized or malformed WebSocket frame. */
  readonly broken: number;
}

interface Peer {
  readonly socket: WebSocket;
  readonly session: DraftSession;
  isClosing: boolean;
  /** Since the last ping. */
  isAlive: boolean;
}

const DEFAULTS = {
  connectionsMax: 1024,
  sendQueueBytes: 8 * 2 ** 20,
  silenceMsMax: 15_000,
  closeMsMax: 2_000,
};
const SWEEP_MS = 1000;

export class DraftService {
  /** Where it listens, as a client dials it. */
  readonly url: string;
  readonly #server: DraftServer;
  readonly #options: typeof DEFAULTS;
  readonly #sockets: WebSocketServer;
  readonly #peers = new Set<Peer>();
  readonly #timers: ReturnType<typeof setInterval>[];
  readonly #closed: Record<number, number> = {};
  #accepted = 0;
  #framesReceived = 0;
  #bytesReceived = 0;
  #bytesSent = 0;
  #broken = 0;
  #isDraining = false;

  private constructor(options: DraftServiceOptions, sockets: WebSocketServer) {
    this.#server = options.server;
    this.#options = {
      connectionsMax: options.connectionsMax ?? DEFAULTS.connectionsMax,
      sendQueueBytes: options.sendQueueBytes ?? DEFAULTS.sendQueueBytes,
      silenceMsMax: options.silenceMsMax ?? DEFAULTS.silenceMsMax,
      closeMsMax: options.closeMsMax ?? DEFAULTS.closeMsMax,
    };
    this.#sockets = sockets;
    const { address, port, family } = sockets.address() as AddressInfo;
    const host = family === "IPv6" ? `[${address}]` : address;
    this.url = `ws://${host}:${port}${DRAFT_PATH}`;
    sockets.on("connection", (socket) => this.#accept(socket));
    this.#timers = [
      setInterval(() => this.#server.sweep(), SWEEP_MS),
      setInterval(() => this.#ping(), this.#options.silenceMsMax),
    ];
  }

  /** Listens. Throws AppError `usage` if the address cannot be had. */
  static async listen(options: DraftServiceOptions): Promise<DraftService> {
    const { host, port, server } = options;
    const sockets = new WebSocketServer({
      host,
      port,
      path: DRAFT_PATH,
      maxPayload: server.limits.frameBytesMax,
      perMessageDeflate: false,
      clientTracking: false,
    });
    await new Promise<void>((resolve, reject) => {
      sockets.once("listening", resolve);
      sockets.once("error", (cause) => {
        reject(
          new AppError("usage", `cannot listen on ${host}:${port}: ${cause.message}`, { cause }),
        );
      });
    });
    return new DraftService(options, sockets);
  }

  stats(): DraftServiceStats {
    return {
      connections: this.#peers.size,
      accepted: this.#accepted,
      framesReceived: this.#framesReceived,
      bytesReceived: this.#bytesReceived,
      bytesSent: this.#bytesSent,
      closed: { ...this.#closed },
      broken: this.#broken,
    };
  }

  /** Stops listening, tells every peer to go, and waits until they have, `closeMsMax` at most. */
  async drain(): Promise<void> {
    this.#isDraining = true;
    for (const timer of this.#timers) clearInterval(timer);
    const stopped = new Promise<void>((resolve) => this.#sockets.close(() => resolve()));
    for (const peer of this.#peers) this.#end(peer, CLOSE.goingAway, "draining");
    await stopped;
  }

  #accept(socket: WebSocket): void {
    this.#accepted += 1;
    const peer: Peer = {
      socket,
      session: new DraftSession(this.#server),
      isClosing: false,
      isAlive: true,
    };
    this.#peers.add(peer);
    const deadline = setTimeout(() => {
      if (!peer.session.isGreeted) this.#end(peer, CLOSE.protocol, "no hello in time");
    }, this.#options.silenceMsMax);
    socket.on("message", (data, isBinary) => this.#receive(peer, data, isBinary));
    socket.on("pong", () => {
      peer.isAlive = true;
    });
    // Always followed by `close`, which does what is to be done.
    socket.on("error", () => {});
    socket.on("close", () => {
      clearTimeout(deadline);
      this.#peers.delete(peer);
      if (!peer.isClosing) this.#broken += 1;
    });
    if (this.#isDraining) this.#end(peer, CLOSE.goingAway, "draining");
    else if (this.#peers.size > this.#options.connectionsMax) {
      this.#end(peer, CLOSE.tryLater, `more than ${this.#options.connectionsMax} connections`);
    }
  }

  #receive(peer: Peer, data: RawData, isBinary: boolean): void {
    if (peer.isClosing) return;
    const frame = bytesOf(data);
    this.#framesReceived += 1;
    this.#bytesReceived += frame.length;
    if (!isBinary) {
      this.#end(peer, CLOSE.text, "unexpected_text: frames are binary");
      return;
    }
    const decoded = decodeClientMessage(frame);
    if (decoded.kind !== "ok") {
      this.#end(peer, CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
      return;
    }
    const answer = peer.session.receive(decoded.message);
    if (answer.kind === "refuse") {
      const code = answer.reason === "version" ? CLOSE.version : CLOSE.protocol;
      this.#end(peer, code, `${answer.reason}: ${answer.problem}`);
      return;
    }
    this.#send(peer, encodeServerMessage(answer.message));
  }

  #send(peer: Peer, frame: Uint8Array): void {
    this.#bytesSent += frame.length;
    peer.socket.send(frame, (error) => {
      // A connection that takes no more bytes will never answer a close either.
      if (error) peer.socket.terminate();
    });
    const waiting = peer.socket.bufferedAmount;
    if (waiting > this.#options.sendQueueBytes) {
      this.#end(peer, CLOSE.tryLater, `slow_consumer: ${waiting} bytes wait to be read`);
    }
  }

  #end(peer: Peer, code: number, reason: string): void {
    if (peer.isClosing) return;
    peer.isClosing = true;
    this.#closed[code] = (this.#closed[code] ?? 0) + 1;
    peer.socket.close(code, closeReason(reason));
    const deadline = setTimeout(() => peer.socket.terminate(), this.#options.closeMsMax);
    peer.socket.once("close", () => clearTimeout(deadline));
  }

  /** A peer that has not answered the last ping is gone, though its connection may not know. */
  #ping(): void {
    for (const peer of this.#peers) {
      if (!peer.isAlive) peer.socket.terminate();
      peer.isAlive = false;
      if (!peer.isClosing) peer.socket.ping();
    }
  }
}

function bytesOf(data: RawData): Uint8Array {
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (Array.isArray(data)) return Buffer.concat(data);
  return data;
}
