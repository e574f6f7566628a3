// A draft client's link to a draft server over a WebSocket. Turns messages into frames and back, and
// what goes wrong into one `closed`. Bounded: when too much waits to be sent it says so.

import { type RawData, WebSocket } from "ws";
import { AppError } from "../base/errors.ts";
import type { Dial, Link, LinkEvents, LinkSend } from "../draft/service/link.ts";
import type { ClientMessage } from "../draft/service/message.ts";
import { CLOSE, closeReason } from "../proto/close-codes.ts";
import { decodeServerMessage, encodeClientMessage } from "../proto/draft-codec.ts";

export interface DraftDialOptions {
  /** `ws://HOST:PORT/v1/draft`. */
  readonly url: string;
  /** Bytes of one frame from the server, at most. */
  readonly frameBytesMax?: number;
  /** Bytes that may wait to be sent; beyond, `send` answers full. */
  readonly sendQueueBytes?: number;
  readonly handshakeMsMax?: number;
}

const FRAME_BYTES_MAX = 16 * 2 ** 20;
const SEND_QUEUE_BYTES = 4 * 2 ** 20;
const HANDSHAKE_MS_MAX = 5_000;
const CLOSE_MS_MAX = 2_000;

class SocketLink implements Link {
  readonly #socket: WebSocket;
  readonly #events: LinkEvents;
  readonly #sendQueueBytes: number;
  #problem: string | null = null;

  constructor(options: DraftDialOptions, events: LinkEvents) {
    this.#events = events;
    this.#sendQueueBytes = options.sendQueueBytes ?? SEND_QUEUE_BYTES;
    const socket = new WebSocket(options.url, {
      maxPayload: options.frameBytesMax ?? FRAME_BYTES_MAX,
      perMessageDeflate: false,
      handshakeTimeout: options.handshakeMsMax ?? HANDSHAKE_MS_MAX,
    });
    this.#socket = socket;
    socket.on("open", () => events.opened());
    socket.on("message", (data, isBinary) => this.#receive(data, isBinary));
    // Always followed by `close`.
    socket.on("error", (error) => {
      this.#problem ??= error.message;
    });
    socket.on("close", (code, reason) => {
      events.closed(this.#problem ?? `closed with ${code} ${reason.toString()}`.trim());
    });
  }

  send(message: ClientMessage): LinkSend {
    const socket = this.#socket;
    if (socket.readyState !== WebSocket.OPEN) return "closed";
    if (socket.bufferedAmount > this.#sendQueueBytes) return "full";
    socket.send(encodeClientMessage(message), (error) => {
      // What was sent may not have arrived: the owner dials again and asks what did.
      if (error) socket.terminate();
    });
    return "sent";
  }

  close(): void {
    this.#end(1000, "");
  }

  #receive(data: RawData, isBinary: boolean): void {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    if (!isBinary || !(data instanceof Uint8Array)) {
      this.#end(CLOSE.text, "unexpected_text: frames are binary");
      return;
    }
    const decoded = decodeServerMessage(data);
    if (decoded.kind === "ok") this.#events.received(decoded.message);
    else this.#end(CLOSE.invalid, `${decoded.kind}: ${decoded.problem}`);
  }

  #end(code: number, reason: string): void {
    const socket = this.#socket;
    if (socket.readyState === WebSocket.CLOSED) return;
    if (reason !== "") this.#problem ??= reason;
    if (socket.readyState !== WebSocket.OPEN) {
      socket.terminate();
      return;
    }
    socket.close(code, closeReason(reason));
    const deadline = setTimeout(() => socket.terminate(), CLOSE_MS_MAX);
    socket.once("close", () => clearTimeout(deadline));
  }
}

/** Throws AppError `usage` if the URL is none of a WebSocket. */
export function socketDial(options: DraftDialOptions): Dial {
  const protocol = URL.parse(options.url)?.protocol;
  if (protocol !== "ws:" && protocol !== "wss:") {
    throw new AppError(
      "usage",
      `"${options.url}" is not a draft server; ws://HOST:PORT/v1/draft is`,
    );
  }
  return (events) => new SocketLink(options, events);
}
