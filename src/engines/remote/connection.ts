// One WebSocket of a worker link, either side: frames in and out, heartbeats, and what ends it. It carries
// the data of at most one session. Decides when a peer is silent or too slow; what that means for the
// session is its owner's. Never throws on what a peer sent.

import { type RawData, WebSocket } from "ws";
import type { Clock } from "../../core/base/clock.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { Delivery } from "./delivery.ts";
import { decodeFrame, encodeFrame } from "./frame-codec.ts";
import type { LinkLimits } from "./limits.ts";
import type { Frame, FrameBody } from "./message.ts";

export interface Closed {
  readonly code: number;
  readonly reason: string;
  /** This side ended it. */
  readonly isOwn: boolean;
  /** The connection was refused: the process has ended. */
  readonly isRefused: boolean;
}

/** Close codes after which a session cannot continue: a side sent invalid data, or has ended. */
export function isFatal({ code }: Closed): boolean {
  return [
    1000,
    CLOSE.goingAway,
    CLOSE.protocol,
    CLOSE.text,
    CLOSE.invalid,
    CLOSE.version,
    CLOSE.takenOver,
    CLOSE.tooLarge,
  ].some((fatal) => fatal === code);
}

export interface ConnectionListener {
  /** Not a heartbeat. Data comes only after `carry`. */
  frame(body: FrameBody, ack: number): void;
  /** The peer is silent for longer than allowed; null: it sends again. */
  quiet(reason: string | null): void;
  /** Once, and nothing afterwards. */
  closed(closed: Closed): void;
}

export interface ConnectionStats {
  frames: number;
  bytes: number;
}

export class Connection {
  readonly received: ConnectionStats = { frames: 0, bytes: 0 };
  readonly sent: ConnectionStats = { frames: 0, bytes: 0 };
  readonly #socket: WebSocket;
  readonly #limits: LinkLimits;
  readonly #clock: Clock;
  readonly #listener: ConnectionListener;
  readonly #heart: ReturnType<typeof setInterval>;
  #delivery: Delivery | null = null;
  #own: { code: number; reason: string } | null = null;
  #problem: string | null = null;
  #isRefused = false;
  #isOver = false;
  #receivedMs: number;
  #beatMs: number;
  #isQuiet = false;
  /** When the peer last acknowledged something, or nothing waited for it. */
  #movedMs: number;

  constructor(
    socket: WebSocket,
    options: { limits: LinkLimits; clock: Clock; listener: ConnectionListener },
  ) {
    this.#socket = socket;
    this.#limits = options.limits;
    this.#clock = options.clock;
    this.#listener = options.listener;
    this.#receivedMs = this.#clock.nowMs();
    this.#movedMs = this.#receivedMs;
    this.#beatMs = this.#receivedMs;
    this.#heart = setInterval(() => this.#beat(), this.#limits.heartbeatMs);
    socket.on("message", (data, isBinary) => this.#receive(data, isBinary));
    // Always followed by `close`, which does what is to be done.
    socket.on("error", (error) => {
      this.#problem ??= error.message;
      const code = "code" in error ? error.code : null;
      if (code === "ECONNREFUSED") this.#isRefused = true;
      // The library has already closed the connection: the peer would send the same again.
      if (code === "WS_ERR_UNSUPPORTED_MESSAGE_LENGTH") {
        this.#own ??= { code: CLOSE.tooLarge, reason: "frame_too_large: above the limit" };
      }
    });
    socket.on("close", (code, reason) => this.#closed(code, reason.toString()));
  }

  get isOpen(): boolean {
    return this.#own === null && this.#socket.readyState === WebSocket.OPEN;
  }

  /** The peer has missed several heartbeats. */
  get isQuiet(): boolean {
    return this.#isQuiet;
  }

  /** From now on the session's data goes over this connection. */
  carry(delivery: Delivery): void {
    this.#delivery = delivery;
    this.#movedMs = this.#clock.nowMs();
  }

  /** `ack`: of a session that the connection does not carry yet. */
  send(body: FrameBody, ack = this.#delivery?.received ?? 0): void {
    if (!this.isOpen) return;
    this.#delivery?.ackSent();
    const bytes = encodeFrame({ ack, body });
    this.sent.frames += 1;
    this.sent.bytes += bytes.length;
    this.#socket.send(bytes, (error) => {
      // A connection that takes no more bytes will never answer a close either.
      if (error) this.#socket.terminate();
    });
  }

  /** Sends what the session has to send, as far as the socket takes it. */
  flush(): void {
    const delivery = this.#delivery;
    if (delivery === null) return;
    while (this.isOpen && this.#socket.bufferedAmount <= this.#limits.socketBytesMax) {
      const wasIdle = !delivery.isAwaiting;
      const frame = delivery.next();
      if (frame === null) break;
      if (wasIdle) this.#movedMs = this.#clock.nowMs();
      this.send(frame);
    }
    if (delivery.isAckDue) this.send({ kind: "heartbeat" });
  }

  /** Closes with a code and a reason; the listener hears `closed` when it is over. */
  end(code: number, reason: string): void {
    if (this.#own !== null || this.#isOver) return;
    const isOpen = this.isOpen;
    this.#own = { code, reason };
    if (!isOpen) {
      this.#socket.terminate();
      return;
    }
    this.#socket.close(code, closeReason(reason));
    const deadline = setTimeout(() => this.#socket.terminate(), this.#limits.closeMsMax);
    this.#socket.once("close", () => clearTimeout(deadline));
  }

  /** As if the network had broken. */
  terminate(reason: string): void {
    this.#own ??= { code: 1006, reason };
    this.#socket.terminate();
  }

  #receive(data: RawData, isBinary: boolean): void {
    if (this.#own !== null || this.#isOver) return;
    if (!isBinary || !(data instanceof Uint8Array)) {
      this.end(CLOSE.text, "unexpected_text: frames are binary");
      return;
    }
    this.received.frames += 1;
    this.received.bytes += data.length;
    this.#receivedMs = this.#clock.nowMs();
    if (this.#isQuiet) {
      this.#isQuiet = false;
      this.#listener.quiet(null);
    }
    const decoded = decodeFrame(data);
    if (decoded.kind === "ok") this.#take(decoded.message);
    else this.end(CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
  }

  #take({ ack, body }: Frame): void {
    const delivery = this.#delivery;
    if (delivery !== null && ack > delivery.acked) {
      if (!delivery.acknowledge(ack)) {
        this.end(CLOSE.invalid, `invalid_message: ack is ${ack}, more than was sent`);
        return;
      }
      this.#movedMs = this.#clock.nowMs();
    }
    if (body.kind === "data" && delivery === null) {
      this.end(CLOSE.protocol, "unexpected_message: data before the hello");
      return;
    }
    if (body.kind !== "heartbeat") this.#listener.frame(body, ack);
    this.flush();
  }

  #beat(): void {
    const nowMs = this.#clock.nowMs();
    const { heartbeatMs, quietMsMax, silenceMsMax } = this.#limits;
    // Time for which this process itself stood still does not count: what came meanwhile is not read yet.
    const lateMs = nowMs - this.#beatMs - heartbeatMs;
    if (lateMs > heartbeatMs) this.#receivedMs = Math.min(nowMs, this.#receivedMs + lateMs);
    this.#beatMs = nowMs;
    const silentMs = nowMs - this.#receivedMs;
    if (silentMs > silenceMsMax) {
      this.terminate(`silent for ${Math.round(silentMs)} ms`);
      return;
    }
    if (silentMs > quietMsMax && !this.#isQuiet && this.#delivery !== null) {
      this.#isQuiet = true;
      this.#listener.quiet(`silent for ${Math.round(silentMs)} ms`);
    }
    const isStalled = this.#delivery?.isAwaiting === true;
    if (isStalled && nowMs - this.#movedMs > this.#limits.stallMsMax) {
      this.end(CLOSE.tryLater, `slow_consumer: ${this.#delivery?.bytes ?? 0} bytes wait`);
      return;
    }
    if (this.#delivery === null) return;
    this.flush();
    this.send({ kind: "heartbeat" });
  }

  #closed(code: number, reason: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#heart);
    const own = this.#own;
    const problem =
      this.#problem ?? (code === 1006 ? "it ended without a close" : "no reason given");
    const theirs = { code, reason: reason === "" ? problem : reason };
    const isRefused = this.#isRefused;
    this.#listener.closed(
      own === null
        ? { ...theirs, isOwn: false, isRefused }
        : { ...own, isOwn: true, isRefused: false },
    );
  }
}
