// KV that is larger than a part: it travels in parts, each a message of its own, behind whatever else there is to
// send. So other requests' tokens pass between the parts, and the socket holds a window of them beside the KV itself.
// The message that uses the KV follows its last part. One KV is on its way at a time, each way.

import { assert } from "../../core/base/assert.ts";
import type { RequestId, WeightEpoch } from "../../core/base/ids.ts";
import type { KvBlob, WorkerEvent } from "../../core/rollout/worker.ts";
import { encodeHostMessage } from "./codec.ts";
import type { KvPart, WireCommand, WireKv } from "./message.ts";

interface Waiting {
  readonly requestId: RequestId;
  readonly bytes: ArrayBuffer;
  /** The message that uses it, encoded when it is its turn. */
  readonly last: () => Uint8Array;
}

interface KvOutboxOptions {
  readonly partBytes: number;
  /** Bytes of all KV that waits together. */
  readonly bytesMax: number;
  readonly encode: (part: KvPart) => Uint8Array;
}

/** KV blobs that a side sends in parts. */
export class KvOutbox {
  readonly #options: KvOutboxOptions;
  readonly #waiting: Waiting[] = [];
  #bytes = 0;
  /** Bytes of the first blob that were sent. */
  #sent = 0;

  constructor(options: KvOutboxOptions) {
    this.#options = options;
  }

  /** Bytes that wait, those sent of the first one included. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether the KV is sent in parts. KV of at most one part is sent in the message that uses it. */
  isLarge(kv: KvBlob): boolean {
    return kv.bytes.byteLength > this.#options.partBytes;
  }

  /** Takes over `kv`. false: there is no room, and it is to be computed again. */
  add(requestId: RequestId, { bytes }: KvBlob, last: () => Uint8Array): boolean {
    if (this.#bytes + bytes.byteLength > this.#options.bytesMax) return false;
    this.#bytes += bytes.byteLength;
    this.#waiting.push({ requestId, bytes, last });
    return true;
  }

  /**
   * Drops a blob that is not wanted any more. A receiver that has parts of it drops them at the first part of the next.
   */
  cancel(requestId: RequestId): void {
    const index = this.#waiting.findIndex((one) => one.requestId === requestId);
    if (index < 0) return;
    const [gone] = this.#waiting.splice(index, 1);
    this.#bytes -= gone?.bytes.byteLength ?? 0;
    if (index === 0) this.#sent = 0;
  }

  clear(): void {
    this.#waiting.length = 0;
    this.#bytes = 0;
    this.#sent = 0;
  }

  /** The next message; null: there is none. */
  next(): Uint8Array | null {
    const first = this.#waiting[0];
    if (first === undefined) return null;
    const total = first.bytes.byteLength;
    if (this.#sent === total) {
      this.cancel(first.requestId);
      return first.last();
    }
    const offset = this.#sent;
    const length = Math.min(this.#options.partBytes, total - offset);
    this.#sent += length;
    return this.#options.encode({
      offset,
      total,
      bytes: new Uint8Array(first.bytes, offset, length),
    });
  }
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
    if (kv === null || "bytes" in kv) return kv;
    const { tokens, streamedBytes } = kv;
    const [whole, have] = [this.#whole, this.#have];
    this.clear();
    if (whole === null || have !== whole.length || have !== streamedBytes) {
      return `KV of ${streamedBytes} bytes is used after ${have} of ${whole?.length ?? 0} have come`;
    }
    assert(whole.buffer.byteLength === have, "the parts fill their buffer");
    return { tokens, bytes: whole.buffer };
  }

  clear(): void {
    this.#whole = null;
    this.#have = 0;
  }
}

export type Exported = Extract<WorkerEvent, { kind: "exported" }>;

/** Exported KV that is larger than a part, on the host's side: the event follows the KV's parts. */
export class KvExports {
  readonly #outbox: KvOutbox;

  constructor(bytesMax: number, partBytes: number) {
    this.#outbox = new KvOutbox({
      partBytes,
      bytesMax,
      encode: (part) => encodeHostMessage({ kind: "kv_part", part }),
    });
  }

  /** false: the event goes out as the others do. */
  take(epoch: WeightEpoch, { requestId, kv }: Exported): boolean {
    if (kv === null || !this.#outbox.isLarge(kv)) return false;
    return this.#outbox.add(requestId, kv, () => {
      const streamed = { tokens: kv.tokens, streamedBytes: kv.bytes.byteLength };
      const event = { kind: "exported", requestId, kv: streamed } as const;
      return encodeHostMessage({ kind: "events", epoch, events: [event] });
    });
  }

  /** KV of an epoch that is over is of no use. */
  obey(commands: readonly WireCommand[]): void {
    if (commands.some(({ kind }) => kind === "advance")) this.#outbox.clear();
  }

  next(): Uint8Array | null {
    return this.#outbox.next();
  }
}
