// KV travels in parts, each a message of its own, behind whatever else there is to send. So other requests' tokens pass
// between the parts, and the socket holds a window of them beside the KV itself. The message that uses the KV follows its
// last part. One KV is on its way at a time, each way.

import { assert } from "../../core/base/assert.ts";
import type { KvBlob } from "../../core/rollout/worker.ts";
import { encodeFrame } from "./frame.ts";
import type { KvPart, WireKv } from "./message.ts";

export interface KvMessages {
  readonly partBytes: number;
  /** The message that uses the KV. */
  readonly last: () => Uint8Array;
  /** false: the KV is not wanted any more. A receiver drops what it has of it at the first part of the next. */
  readonly isWanted: () => boolean;
}

/** The messages that bring KV, made one by one as the socket takes them. */
export function* kvMessages(
  kv: KvBlob | null,
  { partBytes, last, isWanted }: KvMessages,
): Generator<Uint8Array> {
  const { bytes } = kv ?? NO_KV;
  const total = bytes.byteLength;
  for (let offset = 0; offset < total && isWanted(); offset += partBytes) {
    const length = Math.min(partBytes, total - offset);
    const part: KvPart = { offset, total, bytes: new Uint8Array(bytes, offset, length) };
    yield encodeFrame({ kind: "kv_part", part });
  }
  if (isWanted()) yield last();
}

const NO_KV: KvBlob = { tokens: 0, bytes: new ArrayBuffer(0) };

export function wireKv(kv: KvBlob | null): WireKv | null {
  if (kv === null || kv.bytes.byteLength === 0) return null;
  return { tokens: kv.tokens, bytes: kv.bytes.byteLength };
}

/** The KV blob that a side receives in parts. */
export class KvInbox {
  readonly #bytesMax: number;
  #whole: Uint8Array<ArrayBuffer> | null = null;
  #have = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Adds a part; returns its problem, or null. */
  add({ offset, total, bytes }: KvPart): string | null {
    if (offset === 0) {
      this.clear();
      if (total > this.#bytesMax) return `KV has ${total} bytes, above ${this.#bytesMax}`;
      this.#whole = new Uint8Array(total);
    }
    const whole = this.#whole;
    if (whole === null) return `a part of KV begins at ${offset}, and its first one is missing`;
    const isNext = offset === this.#have && total === whole.length && bytes.length > 0;
    if (!isNext || offset + bytes.length > total) {
      return `a part of KV has ${bytes.length} bytes from ${offset} of ${total}, after ${this.#have} of ${whole.length}`;
    }
    whole.set(bytes, offset);
    this.#have += bytes.length;
    return null;
  }

  /** The KV that a message refers to by `kv`; a string: the problem. */
  resolve(kv: WireKv | null): KvBlob | null | string {
    if (kv === null) return null;
    const { tokens, bytes } = kv;
    const [whole, have] = [this.#whole, this.#have];
    this.clear();
    if (whole === null || have !== whole.length || have !== bytes) {
      return `KV of ${bytes} bytes is used after ${have} of ${whole?.length ?? 0} have come`;
    }
    assert(whole.buffer.byteLength === have, "the parts fill their buffer");
    return { tokens, bytes: whole.buffer };
  }

  clear(): void {
    this.#whole = null;
    this.#have = 0;
  }
}
