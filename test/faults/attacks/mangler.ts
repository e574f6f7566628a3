// A WebSocket relay between a sidecar and a host that changes what passes: bits, fields, order, whole frames. What
// it does follows from its seed.

import type { AddressInfo } from "node:net";
import { WebSocket, WebSocketServer } from "ws";
import {
  decodeHostMessage,
  decodeSidecarMessage,
  encodeHostMessage,
  encodeSidecarMessage,
} from "../../../src/engines/remote/codec.ts";
import { editedBytes } from "../fuzz/variations.ts";
import { Dice } from "./settings.ts";

type Relay = (frame: Uint8Array | string) => void;

/** Values that bounds are often forgotten for. */
const NUMBERS = [-1, 0, 1, 2, 7, 31, 999, 1000, 4096, 65_535, 0x7fffffff, 0xffffffff, 2 ** 53 - 1];

export class Mangler {
  readonly url: string;
  readonly #sockets: WebSocketServer;
  readonly #open = new Set<WebSocket>();
  #dice = new Dice(0);
  #last: Uint8Array = new Uint8Array(0);
  /** Number of frames out of 1,000 that are changed. */
  #rate = 0;
  /** Frames changed so far. */
  changed = 0;

  private constructor(sockets: WebSocketServer, hostUrl: string) {
    this.#sockets = sockets;
    this.url = `ws://127.0.0.1:${(sockets.address() as AddressInfo).port}`;
    sockets.on("connection", (near) => this.#relay(near, hostUrl));
  }

  static async listen(hostUrl: string): Promise<Mangler> {
    const sockets = new WebSocketServer({ host: "127.0.0.1", port: 0, perMessageDeflate: false });
    await new Promise((resolve) => sockets.once("listening", resolve));
    return new Mangler(sockets, hostUrl);
  }

  attack(seed: number, rate: number): void {
    this.#dice = new Dice(seed);
    this.#rate = rate;
  }

  async close(): Promise<void> {
    for (const socket of this.#open) socket.terminate();
    await new Promise<void>((resolve) => this.#sockets.close(() => resolve()));
  }

  #relay(near: WebSocket, hostUrl: string): void {
    const far = new WebSocket(`${hostUrl}/v1/link`, { perMessageDeflate: false });
    const early: (Uint8Array | string)[] = [];
    const toFar: Relay = (frame) => {
      if (far.readyState === WebSocket.CONNECTING) early.push(frame);
      else if (far.readyState === WebSocket.OPEN) far.send(frame, () => {});
    };
    const toNear: Relay = (frame) => {
      if (near.readyState === WebSocket.OPEN) near.send(frame, () => {});
    };
    far.on("open", () => {
      for (const frame of early.splice(0)) far.send(frame, () => {});
    });
    for (const [from, to, relay] of [
      [near, far, toFar],
      [far, near, toNear],
    ] as const) {
      this.#open.add(from);
      from.on("error", () => {});
      from.on("message", (data: Uint8Array) => this.#pass(new Uint8Array(data), relay, from));
      from.on("close", (code: number, reason: Uint8Array) => {
        this.#open.delete(from);
        if (code >= 1000 && code !== 1005 && code !== 1006) to.close(code, String(reason));
        else to.terminate();
      });
    }
  }

  #pass(frame: Uint8Array, relay: Relay, from: WebSocket): void {
    // What a host says of its capacity bounds what the sidecar takes: a small context is no broken frame.
    if (this.#dice.below(1000) >= this.#rate || isWelcome(frame)) {
      relay(frame);
      return;
    }
    this.changed += 1;
    const other = this.#last;
    this.#last = frame;
    const way = this.#dice.below(12);
    if (way <= 2) relay(editedBytes(frame, other, this.#dice));
    else if (way === 5) relay("text where frames are binary");
    else if (way === 6) relay(new Uint8Array(2 ** 21));
    else if (way === 7) from.terminate();
    else if (way > 7) relay(this.#rewritten(frame));
    else if (way === 3) {
      relay(frame);
      relay(frame);
    }
  }

  /** The same frame with one number of it, at any depth, replaced: still well formed. */
  #rewritten(bytes: Uint8Array): Uint8Array {
    try {
      const events = decodeHostMessage(bytes);
      if (events.kind === "ok") return encodeHostMessage(this.#altered(events.message));
      const commands = decodeSidecarMessage(bytes);
      if (commands.kind === "ok") return encodeSidecarMessage(this.#altered(commands.message));
    } catch {
      // What was altered cannot be encoded.
    }
    return editedBytes(bytes, this.#last, this.#dice);
  }

  #altered<T>(message: T): T {
    const places: { holder: Record<string, unknown>; key: string }[] = [];
    const walk = (value: unknown, holder: Record<string, unknown> | null, key: string): void => {
      if (typeof value === "number" && holder !== null) places.push({ holder, key });
      if (typeof value !== "object" || value === null || value instanceof ArrayBuffer) return;
      for (const name of Object.keys(value).slice(0, 64)) {
        walk((value as Record<string, unknown>)[name], value as Record<string, unknown>, name);
      }
    };
    walk(message, null, "");
    const place = places[this.#dice.below(places.length || 1)];
    if (place === undefined) return message;
    const { holder, key } = place;
    const value = this.#dice.one(NUMBERS);
    holder[key] = this.#dice.below(2) === 0 ? value : Number(holder[key]) + this.#dice.below(5) - 2;
    return message;
  }
}

function isWelcome(bytes: Uint8Array): boolean {
  const decoded = decodeHostMessage(bytes);
  return decoded.kind === "ok" && decoded.message.kind === "welcome";
}
