// Delivers messages once and in order over connections that break. Each side of a session has one: it
// numbers what it sends, keeps it until it is acknowledged, and sends it again from the peer's position;
// what it receives it takes once. Owns no socket and no timer; what it keeps is bounded.

import { assert } from "../../core/base/assert.ts";
import type { Data } from "./message.ts";

export interface DeliveryLimits {
  readonly frameBytesMax: number;
  readonly messageBytesMax: number;
  readonly bufferBytesMax: number;
  /** Below it, what is not acknowledged is filled up from `more`. */
  readonly kvWindowBytes: number;
}

export type Accepted =
  /** A message is whole. */
  | { readonly kind: "message"; readonly payload: Uint8Array }
  /** More of it is to come, or it had come before. */
  | { readonly kind: "nothing" }
  | { readonly kind: "refuse"; readonly problem: string };

/** An empty message still takes room. */
const ENTRY_BYTES = 64;
/** Limits of unacknowledged input before an acknowledgement is due. */
const UNACKED_FRAMES_MAX = 32;
const UNACKED_BYTES_MAX = 512 * 1024;

export class Delivery {
  readonly #limits: DeliveryLimits;
  readonly #more: () => Uint8Array | null;
  /** Not acknowledged, oldest first; the first has number `#acked + 1`. Before `#start`: acknowledged. */
  #frames: Data[] = [];
  #start = 0;
  #acked = 0;
  #pushed = 0;
  #sent = 0;
  #bytes = 0;
  #received = 0;
  #parts: Uint8Array[] = [];
  #partBytes = 0;
  #owedFrames = 0;
  #owedBytes = 0;

  /** `more`: messages that wait until nothing else does; null: there are none. */
  constructor(limits: DeliveryLimits, more: () => Uint8Array | null = () => null) {
    this.#limits = limits;
    this.#more = more;
  }

  /** Number of the last data frame taken. */
  get received(): number {
    return this.#received;
  }

  /** Number of the last data frame that the peer has. */
  get acked(): number {
    return this.#acked;
  }

  /** Bytes kept until they are acknowledged. */
  get bytes(): number {
    return this.#bytes;
  }

  /** true: frames are sent and not acknowledged. */
  get isAwaiting(): boolean {
    return this.#sent > this.#acked;
  }

  /** Whether a message of this size would be accepted. */
  canPush(bytes: number): boolean {
    return (
      bytes <= this.#limits.messageBytesMax && this.#bytes + bytes <= this.#limits.bufferBytesMax
    );
  }

  /** Takes over `payload`. false: the buffer is full, and the session over. */
  push(payload: Uint8Array): boolean {
    const { frameBytesMax } = this.#limits;
    if (!this.canPush(payload.length)) return false;
    let at = 0;
    do {
      const end = Math.min(at + frameBytesMax, payload.length);
      this.#pushed += 1;
      const more = end < payload.length;
      const part = payload.subarray(at, end);
      this.#frames.push({ kind: "data", seq: this.#pushed, more, payload: part });
      this.#bytes += part.length + ENTRY_BYTES;
      at = end;
    } while (at < payload.length);
    return true;
  }

  /** The next frame to send; null: all are sent. */
  next(): Data | null {
    if (this.#sent === this.#pushed && !this.#fill()) return null;
    const frame = this.#frames[this.#start + this.#sent - this.#acked];
    assert(frame !== undefined, "what is not acknowledged is kept");
    this.#sent += 1;
    return frame;
  }

  #fill(): boolean {
    const { kvWindowBytes, bufferBytesMax } = this.#limits;
    if (this.#bytes >= Math.min(kvWindowBytes, bufferBytesMax / 2)) return false;
    const message = this.#more();
    if (message === null) return false;
    const isTaken = this.push(message);
    assert(isTaken, "there is room for a message that waited");
    return true;
  }

  /** The peer has every frame up to `seq`. false: it cannot, they were never sent. */
  acknowledge(seq: number): boolean {
    if (seq > this.#sent) return false;
    while (this.#acked < seq) {
      const frame = this.#frames[this.#start];
      assert(frame !== undefined, "what is not acknowledged is kept");
      this.#bytes -= frame.payload.length + ENTRY_BYTES;
      this.#acked += 1;
      this.#start += 1;
    }
    if (this.#start > 1024 || this.#start === this.#frames.length) {
      this.#frames = this.#frames.slice(this.#start);
      this.#start = 0;
    }
    return true;
  }

  /** A new connection: the peer has every frame up to `seq`, the rest goes out again. false: it cannot have. */
  rewind(seq: number): boolean {
    if (seq < this.#acked || !this.acknowledge(seq)) return false;
    this.#sent = seq;
    return true;
  }

  accept({ seq, more, payload }: Data): Accepted {
    // An acknowledgement is due for a repeat as well: the one before may not have arrived.
    this.#owedFrames += 1;
    this.#owedBytes += payload.length;
    if (seq <= this.#received) return { kind: "nothing" };
    if (seq > this.#received + 1) {
      return { kind: "refuse", problem: `frame ${seq} came after ${this.#received}` };
    }
    this.#received = seq;
    this.#partBytes += payload.length;
    if (this.#partBytes > this.#limits.messageBytesMax) {
      return {
        kind: "refuse",
        problem: `a message is larger than ${this.#limits.messageBytesMax} bytes`,
      };
    }
    if (!more && this.#parts.length === 0) {
      this.#partBytes = 0;
      return { kind: "message", payload };
    }
    // An empty piece of an unfinished message would let a peer pile up pieces without end.
    if (more && payload.length === 0) return { kind: "refuse", problem: "a piece is empty" };
    // A copy: the frame's bytes belong to the socket.
    this.#parts.push(new Uint8Array(payload));
    if (more) return { kind: "nothing" };
    return { kind: "message", payload: this.#join() };
  }

  /** Enough has come in that an acknowledgement is due. */
  get isAckDue(): boolean {
    return this.#owedFrames >= UNACKED_FRAMES_MAX || this.#owedBytes >= UNACKED_BYTES_MAX;
  }

  /** A frame with `received` in it goes out. */
  ackSent(): void {
    this.#owedFrames = 0;
    this.#owedBytes = 0;
  }

  #join(): Uint8Array {
    const whole = new Uint8Array(this.#partBytes);
    let at = 0;
    for (const part of this.#parts) {
      whole.set(part, at);
      at += part.length;
    }
    this.#parts = [];
    this.#partBytes = 0;
    return whole;
  }
}
