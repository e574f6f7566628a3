// Exported KV that is larger than a part, on the host's side: the event follows the KV's parts.

import type { WeightEpoch } from "../../core/base/ids.ts";
import { encodeHostMessage } from "./codec.ts";
import type { Exported } from "./host-session.ts";
import { KvOutbox } from "./kv-stream.ts";
import type { WireCommand } from "./message.ts";

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
