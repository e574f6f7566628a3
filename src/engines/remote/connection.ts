// One WebSocket of a worker link, either side: messages in and out, heartbeats, and what ends it. Decides when a peer is
// silent or too slow. What it keeps for a peer is bounded; a session ends with its connection. Never throws on what a
// peer sent.

import { type RawData, WebSocket } from "ws";
import type { Clock } from "../../core/base/clock.ts";
import type { Decoded } from "../../proto/checked.ts";
import { CLOSE, closeReason } from "../../proto/close-codes.ts";
import type { LinkLimits } from "./limits.ts";

export interface Closed {
  readonly code: number;
  readonly reason: string;
  /** Closed by this side. */
  readonly isOwn: boolean;
  /** Neither side closed it: the network broke, or a process ended. */
  readonly isCut: boolean;
}

type Heartbeat = { readonly kind: "heartbeat" };

/** `In`: what the peer sends. */
export interface ConnectionOptions<In extends { readonly kind: string }> {
  readonly limits: LinkLimits;
  readonly clock: Clock;
  readonly decode: (bytes: Uint8Array) => Decoded<In | Heartbeat>;
  /** A message of this side without content. */
  readonly heartbeat: Uint8Array;
  readonly message: (message: In) => void;
  /** The peer is silent for longer than allowed; null: it sends again. */
  readonly quiet?: (reason: string | null) => void;
  /** Once, and nothing afterwards: at once if this side ends it. */
  readonly closed: (closed: Closed) => void;
}

/** An empty message still takes room. */
const ENTRY_BYTES = 64;
/** The code of a connection that ended without a close (RFC 6455, 7.4.1). */
const CUT = 1006;

export class Connection<In extends { readonly kind: string }> {
  /** Resolves when the socket is freed. */
  readonly gone: Promise<void>;
  readonly #socket: WebSocket;
  readonly #options: ConnectionOptions<In>;
  readonly #heart: ReturnType<typeof setInterval>;
  /** Messages that wait until hardly any others do. */
  readonly #later: { readonly messages: Iterator<Uint8Array>; readonly bytes: number }[] = [];
  #laterBytes = 0;
  /** Bytes that wait to be read by the peer. */
  #socketBytes = 0;
  #problem: string | null = null;
  #isOver = false;
  #isQuiet = false;
  #receivedMs: number;
  #beatMs: number;
  /** When the socket last passed something on, or nothing waited for it. */
  #movedMs: number;

  constructor(socket: WebSocket, options: ConnectionOptions<In>) {
    this.#socket = socket;
    this.#options = options;
    this.#receivedMs = options.clock.nowMs();
    this.#beatMs = this.#receivedMs;
    this.#movedMs = this.#receivedMs;
    this.#heart = setInterval(() => this.#beat(), options.limits.heartbeatMs);
    socket.on("message", (data, isBinary) => this.#receive(data, isBinary));
    // Always followed by `close`.
    socket.on("error", (error) => {
      this.#problem ??= error.message;
      // The library has already closed the connection: the peer would send the same again.
      if ("code" in error && error.code === "WS_ERR_UNSUPPORTED_MESSAGE_LENGTH") {
        const reason = "frame_too_large: above the limit";
        this.#over({ code: CLOSE.tooLarge, reason, isOwn: true, isCut: false });
      }
    });
    this.gone = new Promise((resolve) => {
      socket.on("close", (code, reason) => {
        const text = reason.toString();
        const problem =
          this.#problem ?? (code === CUT ? "it ended without a close" : "no reason given");
        const said = text === "" ? problem : text;
        this.#over({ code, reason: said, isOwn: false, isCut: code === CUT });
        resolve();
      });
    });
  }

  /** The peer has missed several heartbeats. */
  get isQuiet(): boolean {
    return this.#isQuiet;
  }

  /** Takes over `bytes`. With too many of them unread the peer is too slow, and the connection over. */
  push(bytes: Uint8Array): void {
    if (this.#isOver || this.#socket.readyState !== WebSocket.OPEN) return;
    if (this.#socketBytes === 0) this.#movedMs = this.#options.clock.nowMs();
    const taken = bytes.length + ENTRY_BYTES;
    this.#socketBytes += taken;
    this.#socket.send(bytes, (error) => {
      // A connection that takes no more bytes will never answer a close either.
      if (error) {
        this.#socket.terminate();
        return;
      }
      this.#socketBytes -= taken;
      this.#movedMs = this.#options.clock.nowMs();
      this.#sendLater();
    });
    if (this.#socketBytes > this.#options.limits.bufferBytesMax) this.#tooSlow();
  }

  /**
   * Takes over `messages` of about `bytes` in all, and sends them whenever hardly anything else waits; nor does anything
   * that is pushed in this turn come after them. false: there is no room.
   */
  pushLater(messages: Iterator<Uint8Array>, bytes: number): boolean {
    if (this.#isOver || this.#laterBytes + bytes > this.#options.limits.kvBytesMax) return false;
    this.#later.push({ messages, bytes });
    this.#laterBytes += bytes;
    queueMicrotask(() => this.#sendLater());
    return true;
  }

  /** Closes with a code and a reason. */
  end(code: number, reason: string): void {
    if (this.#isOver) return;
    const socket = this.#socket;
    if (socket.readyState === WebSocket.OPEN) {
      socket.close(code, closeReason(reason));
      const deadline = setTimeout(() => socket.terminate(), this.#options.limits.closeMsMax);
      socket.once("close", () => clearTimeout(deadline));
    } else socket.terminate();
    this.#over({ code, reason, isOwn: true, isCut: false });
  }

  #over(closed: Closed): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#heart);
    this.#later.length = 0;
    this.#options.closed(closed);
  }

  #tooSlow(): void {
    this.end(CLOSE.tryLater, `slow_consumer: ${this.#socketBytes} bytes wait to be read`);
  }

  /** The socket gets a window of them, since nothing overtakes what it has. */
  #sendLater(): void {
    while (this.#socketBytes < this.#options.limits.kvWindowBytes) {
      const [first] = this.#later;
      if (first === undefined) return;
      const { value } = first.messages.next();
      if (value !== undefined) {
        this.push(value);
        continue;
      }
      this.#later.shift();
      this.#laterBytes -= first.bytes;
    }
  }

  #receive(data: RawData, isBinary: boolean): void {
    if (this.#isOver) return;
    if (!isBinary || !(data instanceof Uint8Array)) {
      this.end(CLOSE.text, "unexpected_text: frames are binary");
      return;
    }
    const { clock, decode, quiet } = this.#options;
    this.#receivedMs = clock.nowMs();
    if (this.#isQuiet) {
      this.#isQuiet = false;
      quiet?.(null);
    }
    const decoded = decode(data);
    if (decoded.kind !== "ok") this.end(CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
    else if (!isHeartbeat(decoded.message)) this.#options.message(decoded.message);
  }

  #beat(): void {
    const { clock, limits, quiet, heartbeat } = this.#options;
    const nowMs = clock.nowMs();
    // Time for which this process itself stood still does not count: what came meanwhile is not read yet.
    const lateMs = nowMs - this.#beatMs - limits.heartbeatMs;
    if (lateMs > limits.heartbeatMs) {
      this.#receivedMs = Math.min(nowMs, this.#receivedMs + lateMs);
      this.#movedMs = Math.min(nowMs, this.#movedMs + lateMs);
    }
    this.#beatMs = nowMs;
    const silentMs = nowMs - this.#receivedMs;
    if (silentMs > limits.silenceMsMax) {
      this.#socket.terminate();
      const reason = `silent for ${Math.round(silentMs)} ms`;
      this.#over({ code: CUT, reason, isOwn: true, isCut: true });
      return;
    }
    if (silentMs > limits.quietMsMax && !this.#isQuiet) {
      this.#isQuiet = true;
      quiet?.(`silent for ${Math.round(silentMs)} ms`);
    }
    if (this.#socketBytes === 0) this.push(heartbeat);
    else if (nowMs - this.#movedMs > limits.stallMsMax) this.#tooSlow();
  }
}

function isHeartbeat(message: { readonly kind: string }): message is Heartbeat {
  return message.kind === "heartbeat";
}
